//! Cuts a kernel's BTF down to what the layout is made from: the fixtures of `kernel::layout`.
//!
//! ```text
//! cargo run --example trim-btf -- /sys/kernel/btf/vmlinux agent/tests/fixtures/btf/6.18.btf
//! ```
//!
//! Kept are the structs that the programs walk through, whole, with all that they hold by value, and
//! the tracepoints' types. What lies behind a pointer becomes `void`.

use std::collections::BTreeMap;

const STRUCTS: [&str; 21] = [
    "task_struct",
    "signal_struct",
    "sighand_struct",
    "k_sigaction",
    "sigpending",
    "pid",
    "upid",
    "css_set",
    "cgroup_subsys_state",
    "cgroup",
    "cgroup_root",
    "kernfs_node",
    "kernel_siginfo",
    "list_head",
    "nsproxy",
    "ns_common",
    "sock",
    "inet_sock",
    "inet_connection_sock",
    "tcp_sock",
    "sk_buff",
];
const TRACEPOINTS: [&str; 11] = [
    "cgroup_mkdir",
    "cgroup_rmdir",
    "cgroup_notify_populated",
    "cgroup_notify_frozen",
    "sched_process_exit",
    "sched_process_exec",
    "signal_deliver",
    "signal_generate",
    "mark_victim",
    "inet_sock_set_state",
    "tcp_send_reset",
];
/// Of these only the members that are needed: with all that they hold by value they are a quarter of a megabyte.
const MEMBERS: [(&str, &[&str]); 3] = [
    ("net", &["ns", "hash_mix"]),
    ("net_device", &["nd_net", "ifindex"]),
    ("pid_namespace", &["ns"]),
];

struct WholeBtf {
    types: Vec<Vec<u32>>,
    strings: Vec<u8>,
}

impl WholeBtf {
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let start = word(4) as usize;
        let (mut at, end) = (start + word(8) as usize, start + (word(8) + word(12)) as usize);
        let strings = start + word(16) as usize;
        let mut types = vec![Vec::new()];
        while at < end {
            let info = word(at + 4);
            let (kind, vlen) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let words = 3 + match kind {
                1 | 14 | 17 => 1,
                3 => 3,
                4 | 5 | 15 | 19 => 3 * vlen,
                6 | 13 => 2 * vlen,
                _ => 0,
            };
            types.push((0..words).map(|n| word(at + 4 * n)).collect());
            at += 4 * words;
        }
        Self { types, strings: bytes[strings..strings + word(20) as usize].to_vec() }
    }

    fn name(&self, offset: u32) -> &str {
        let text = &self.strings[offset as usize..];
        std::str::from_utf8(text.split(|byte| *byte == 0).next().unwrap()).unwrap()
    }

    fn kind(&self, id: u32) -> u32 {
        self.types[id as usize][1] >> 24 & 0x1f
    }
}

#[derive(Default)]
struct Trimmed {
    ids: BTreeMap<u32, u32>,
    types: Vec<Vec<u32>>,
    strings: Vec<u8>,
    offsets: BTreeMap<String, u32>,
}

impl Trimmed {
    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(offset) = self.offsets.get(text) {
            return *offset;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend(text.bytes().chain([0]));
        self.offsets.insert(text.to_owned(), offset);
        offset
    }

    /// Copies a type and what it holds by value; `behind`: pointers are followed, as in a
    /// tracepoint's prototype.
    fn copy(&mut self, source: &WholeBtf, id: u32, behind: bool) -> u32 {
        if id == 0 {
            return 0;
        }
        if let Some(known) = self.ids.get(&id) {
            return *known;
        }
        let slot = self.types.len();
        self.types.push(Vec::new());
        let new = slot as u32 + 1;
        self.ids.insert(id, new);
        let mut words = source.types[id as usize].clone();
        words[0] = self.string(source.name(words[0]));
        match source.kind(id) {
            2 => words[2] = if behind { self.copy(source, words[2], true) } else { 0 },
            8..=11 | 18 => words[2] = self.copy(source, words[2], behind),
            3 => {
                words[3] = self.copy(source, words[3], false);
                words[4] = self.copy(source, words[4], false);
            }
            4 | 5 => {
                let wanted = MEMBERS
                    .iter()
                    .find(|(name, _)| *name == source.name(source.types[id as usize][0]));
                if let Some((_, wanted)) = wanted {
                    let is_wanted = |member: &&[u32]| {
                        let name = source.name(member[0]);
                        name.is_empty() || wanted.contains(&name)
                    };
                    let kept: Vec<u32> =
                        words[3..].chunks_exact(3).filter(is_wanted).flatten().copied().collect();
                    words[1] = words[1] & 0xffff_0000 | (kept.len() / 3) as u32;
                    words.truncate(3);
                    words.extend(kept);
                }
                for member in words[3..].chunks_exact_mut(3) {
                    member[0] = self.string(source.name(member[0]));
                    member[1] = self.copy(source, member[1], false);
                }
            }
            6 => {
                for value in words[3..].chunks_exact_mut(2) {
                    value[0] = self.string(source.name(value[0]));
                }
            }
            13 => {
                words[2] = 0;
                for parameter in words[3..].chunks_exact_mut(2) {
                    parameter[0] = self.string(source.name(parameter[0]));
                    parameter[1] = self.copy(source, parameter[1], false);
                }
            }
            _ => {}
        }
        self.types[slot] = words;
        new
    }

    fn bytes(&self) -> Vec<u8> {
        let types: Vec<u8> =
            self.types.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types.len(), types.len(), self.strings.len()] {
            bytes.extend((word as u32).to_le_bytes());
        }
        bytes.extend(types);
        bytes.extend(&self.strings);
        bytes
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, from, to] = &arguments[..] else { panic!("trim-btf FROM TO") };
    let source = WholeBtf::parse(&std::fs::read(from).unwrap());
    let mut trimmed = Trimmed { strings: vec![0], ..Trimmed::default() };
    for id in 1..source.types.len() as u32 {
        let name = source.name(source.types[id as usize][0]);
        let tracepoint = name.strip_prefix("btf_trace_").is_some_and(|n| TRACEPOINTS.contains(&n));
        match source.kind(id) {
            4 if STRUCTS.contains(&name) || MEMBERS.iter().any(|(of, _)| *of == name) => {
                trimmed.copy(&source, id, false)
            }
            8 if tracepoint => trimmed.copy(&source, id, true),
            _ => 0,
        };
    }
    std::fs::write(to, trimmed.bytes()).unwrap();
}
