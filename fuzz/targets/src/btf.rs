use coroner::sources::kernel::{Hierarchy, btf::Btf, layout, plan};

/// BTF: any bytes through the parser and the resolution of the programs' layout.
pub fn btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes) else { return };
    let v2 = Hierarchy::V2 { root: "/sys/fs/cgroup".into() };
    let v1 = Hierarchy::V1 { root: "/x".into(), controller: "blkio".into(), id: 7 };
    for hierarchy in [v2, v1] {
        let unified = hierarchy.is_unified();
        match layout::resolve(&btf, &hierarchy, 0) {
            Ok(layout) => {
                assert_eq!(layout.unified, u32::from(unified));
                assert_eq!(Some(layout.task_comm), btf.offset("task_struct", "comm"));
                assert_eq!(Some(layout.upid_size), btf.size("upid"));
            }
            Err(missing) => assert!(!missing.0.is_empty(), "refused without a word"),
        }
        let hooks = plan::plan(&plan::tracepoints(&btf), unified);
        assert_eq!(hooks.len(), plan::HOOKS.len() - usize::from(!unified));
    }
}
