//! A reader of BTF, the kernel's own description of its types: bytes in, offsets out. Pure.
//!
//! It knows what the layout needs and no more: members of structs through anonymous ones, sizes,
//! enumerators, the parameters of tracepoints. (The format: `Documentation/bpf/btf.rst`.)

use std::collections::HashMap;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Parsed BTF: an index into the bytes.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `types`; id 0 is void.
    offsets: Vec<u32>,
    /// Structs, unions, enums and typedefs by name. Several types may share one.
    by_name: HashMap<&'a [u8], Vec<u32>>,
}

#[derive(Clone, Copy)]
struct Type {
    kind: u32,
    vlen: u32,
    flag: bool,
    size_or_type: u32,
    /// Offset of what follows the common part.
    rest: usize,
}

/// What stands for a type's place in another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u32,
    of: u32,
}

/// What a tracepoint's parameter is, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    Pointer,
    /// Anything else: a number, a truth value.
    Scalar,
}

impl<'a> Btf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.len() < 24 || bytes[..2] != 0xeb9fu16.to_le_bytes() {
            return Err("not BTF, or in another byte order".to_owned());
        }
        let truncated = || format!("truncated to {} bytes", bytes.len());
        let word = |at| Words(bytes).word(at).map(|word| word as usize);
        let section = |offset, len| {
            let start = word(4)? + word(offset)?;
            bytes.get(start..start + word(len)?)
        };
        let types = section(8, 12).ok_or_else(truncated)?;
        let strings = section(16, 20).ok_or_else(truncated)?;

        let mut btf = Self { types, strings, offsets: vec![0], by_name: HashMap::new() };
        let mut at = 0usize;
        while at < types.len() {
            let id = btf.offsets.len() as u32;
            let ty = btf.type_at(at).ok_or_else(truncated)?;
            let tail = match ty.kind {
                INT | VAR | DECL_TAG => 4,
                ARRAY => 12,
                PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
                STRUCT | UNION | DATASEC | ENUM64 => 12 * ty.vlen as usize,
                ENUM | FUNC_PROTO => 8 * ty.vlen as usize,
                kind => return Err(format!("type {id} has the unknown kind {kind}")),
            };
            if matches!(ty.kind, STRUCT | UNION | ENUM | TYPEDEF) {
                let name = btf.string(Words(types).word(at).unwrap_or_default());
                if !name.is_empty() {
                    btf.by_name.entry(name).or_default().push(id);
                }
            }
            btf.offsets.push(at as u32);
            at = ty.rest + tail;
        }
        if at == types.len() { Ok(btf) } else { Err(truncated()) }
    }

    /// Offset in bytes of a member, by a path such as `signal` or `pending.signal` or
    /// `pids[1]`; `None` if the struct or the member does not exist, or begins within a byte.
    pub fn offset(&self, of: &str, path: &str) -> Option<u32> {
        // Several structs may share a name (a driver's private one): the first that has it counts.
        self.named(of, STRUCT).find_map(|id| self.place(id, path)).map(|place| place.offset)
    }

    pub fn size(&self, of: &str) -> Option<u32> {
        self.named(of, STRUCT).next().and_then(|id| self.get(id)).map(|ty| ty.size_or_type)
    }

    /// The parameters that a raw tracepoint's program sees; `None` if there is no such tracepoint.
    /// They stand in `typedef void (*btf_trace_<name>)(void *, …)`.
    pub fn tracepoint(&self, name: &str) -> Option<Vec<Parameter>> {
        let typedef = format!("btf_trace_{name}");
        self.named(&typedef, TYPEDEF).find_map(|id| {
            let pointer = self.get(self.get(id)?.size_or_type).filter(|ty| ty.kind == PTR)?;
            let proto = self.get(pointer.size_or_type).filter(|ty| ty.kind == FUNC_PROTO)?;
            (1..proto.vlen as usize)
                .map(|n| {
                    let of = Words(self.types).word(proto.rest + 8 * n + 4)?;
                    let ty = self.get(self.strip(of)?)?;
                    Some(if ty.kind == PTR { Parameter::Pointer } else { Parameter::Scalar })
                })
                .collect()
        })
    }

    fn place(&self, id: u32, path: &str) -> Option<Place> {
        path.split('.').try_fold(Place { offset: 0, of: id }, |place, step| {
            let (name, index) = match step.split_once('[') {
                Some((name, index)) => (name, Some(index.strip_suffix(']')?.parse::<u32>().ok()?)),
                None => (step, None),
            };
            let mut member = self.member(self.strip(place.of)?, name)?;
            if let Some(index) = index {
                let array = self.get(self.strip(member.of)?).filter(|ty| ty.kind == ARRAY)?;
                let of = Words(self.types).word(array.rest)?;
                member = Place { offset: member.offset + self.size_of(of)? * index, of };
            }
            Some(Place { offset: place.offset + member.offset, of: member.of })
        })
    }

    /// A member of a struct or union, searched for in anonymous members too.
    fn member(&self, id: u32, name: &str) -> Option<Place> {
        let ty = self.get(id).filter(|ty| matches!(ty.kind, STRUCT | UNION))?;
        (0..ty.vlen as usize).find_map(|n| {
            let at = ty.rest + 12 * n;
            let words = Words(self.types);
            let (own, of, bits) = (words.word(at)?, words.word(at + 4)?, words.word(at + 8)?);
            // With the kind flag the upper byte is the bit field's size.
            let bits = if ty.flag { bits & 0x00ff_ffff } else { bits };
            let place = match self.string(own) {
                b"" => self.member(self.strip(of)?, name)?,
                own if own == name.as_bytes() => Place { offset: 0, of },
                _ => return None,
            };
            (bits % 8 == 0).then_some(Place { offset: bits / 8 + place.offset, of: place.of })
        })
    }

    fn size_of(&self, id: u32) -> Option<u32> {
        let ty = self.get(self.strip(id)?)?;
        match ty.kind {
            PTR => Some(8),
            INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => Some(ty.size_or_type),
            _ => None,
        }
    }

    /// Through typedefs and qualifiers to the type itself.
    fn strip(&self, mut id: u32) -> Option<u32> {
        loop {
            let ty = self.get(id)?;
            match ty.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = ty.size_or_type,
                _ => return Some(id),
            }
        }
    }

    fn named(&self, name: &str, kind: u32) -> impl Iterator<Item = u32> {
        let ids = self.by_name.get(name.as_bytes()).map_or(&[][..], Vec::as_slice);
        ids.iter().copied().filter(move |id| self.get(*id).is_some_and(|ty| ty.kind == kind))
    }

    fn get(&self, id: u32) -> Option<Type> {
        let at = *self.offsets.get(id as usize).filter(|_| id != 0)?;
        self.type_at(at as usize)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let words = Words(self.types);
        let info = words.word(at + 4)?;
        Some(Type {
            kind: (info >> 24) & 0x1f,
            vlen: info & 0xffff,
            flag: info >> 31 != 0,
            size_or_type: words.word(at + 8)?,
            rest: at + 12,
        })
    }

    fn string(&self, at: u32) -> &'a [u8] {
        let text = self.strings.get(at as usize..).unwrap_or_default();
        text.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// Bytes read as little-endian words.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn word(&self, at: usize) -> Option<u32> {
        self.0.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }
}
