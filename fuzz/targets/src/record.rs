use crate::checks::{pieces, recorded};
use coroner::sources::kernel::decode::decode;
use coroner_core::{
    ids::CgroupId,
    input::{Input, KernelFact},
};
use coroner_ebpf::record;

/// Records of the ring buffers: any bytes → inputs.
pub fn record(bytes: &[u8]) {
    for record in pieces::<2>(bytes) {
        match decode(record) {
            Ok(event) => {
                let word = |at: usize| u64::from_le_bytes(*record[at..].first_chunk().unwrap());
                assert_eq!(event.time.0, word(8));
                longest(&event.fact);
                if let Some(cgroup) = event.fact.cgroup() {
                    assert_eq!(cgroup, CgroupId(word(16)));
                }
                recorded(Input::Kernel(event));
            }
            Err(refused) => {
                assert_eq!(refused.len, record.len());
                assert!(refused.to_string().len() < 80);
            }
        }
    }
}

/// A replaced byte takes three.
fn longest(fact: &KernelFact) {
    let (comm, name) = (3 * record::COMM_LEN, 3 * record::NAME_LEN);
    match fact {
        KernelFact::CgroupCreated { name: text, .. } => assert!(text.len() <= name),
        KernelFact::SignalGenerated(signal) => {
            assert!(signal.target.comm.len() <= comm && signal.sender.comm.len() <= comm);
        }
        KernelFact::Exec { task, parent, .. } => {
            assert!(task.comm.len() <= comm && parent.comm.len() <= comm);
        }
        KernelFact::NamespaceKilled(killed) => {
            assert!(killed.sent.len() <= record::SIGNALS);
            assert!(killed.examples.len() <= record::EXAMPLES);
            assert!(killed.examples.iter().all(|example| example.comm.len() <= comm));
        }
        _ => {}
    }
}
