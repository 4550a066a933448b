use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! { loop {} }
#[raw_tracepoint]
pub fn sched_process_exit(_ctx: RawTracePointContext) -> i32 { 0 }
