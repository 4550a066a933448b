use coroner::{
    linux::{
        process_cgroup,
        procfs::{net, parse},
    },
    sources::{host, kernel},
};
use coroner_core::cgroup_path;
use std::{os::unix::ffi::OsStrExt as _, path::Path};

/// What the host tells in files: /proc of a process, mounts, cgroups, command lines.
pub fn host(bytes: &[u8]) {
    // A name, a table, and a second table.
    let mut parts = bytes.splitn(3, |byte| *byte == 0xff);
    let part = parts.next().unwrap_or_default();
    let (name, text) = (String::from_utf8_lossy(part), parts.next().unwrap_or_default());
    let second = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let table = String::from_utf8_lossy(text);

    // Names are bytes.
    let tail = b") S 5 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 12 0 86400 99 1\n";
    let stat = parse::stat(&[b"7 (", part, tail].concat()).expect("it is one");
    let read = (&*stat.comm, stat.state.letter(), stat.parent, stat.started);
    assert_eq!(read, (&*name, 'S', 5, 86_400));
    parse::stat(text);
    parse::wchan(&table);
    parse::events_frozen(&table);
    parse::freezer_frozen(&table);
    for function in parse::stack(&table) {
        assert!(!function.is_empty() && !function.contains([' ', '+']), "{function:?}");
    }

    // /proc/PID/net.
    for section in ["Tcp", "TcpExt", &name] {
        net::counter(&table, section, "OutRsts");
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
    assert!(net::fib_addresses(lines(&table)).len() <= table.lines().count());
    assert!(net::inet6_addresses(lines(&second)).len() <= second.lines().count());
    for line in table.lines() {
        net::socket_line(line);
    }

    // As the kernel's seq_path writes it: fs/seq_file.c, mangle_path with " \t\n\\".
    let mangled: Vec<u8> = part
        .iter()
        .flat_map(|byte| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            byte => vec![*byte],
        })
        .collect();
    if let Ok(mangled) = str::from_utf8(&mangled) {
        assert_eq!(process_cgroup::unescape(mangled).as_os_str().as_bytes(), part);
    }

    let (volumes, left_out) = host::fuzzing::volumes(&table);
    assert!(volumes.len() <= host::fuzzing::MAX_ENTRIES);
    assert!(left_out == 0 || volumes.len() == host::fuzzing::MAX_ENTRIES);
    assert!(volumes.iter().all(|volume| !volume.pod.as_str().is_empty()));
    assert!(host::fuzzing::net_namespaces(&table).len() <= table.lines().count());
    host::fuzzing::namespace_inode(&table);
    for comm in ["containerd-shim", "conmon", &name] {
        if let Some(id) = host::fuzzing::serves(comm, text) {
            assert!(!id.is_empty() && id.len() < text.len());
        }
    }

    // The machine's own files are no input.
    let own = |mount: &Path| Some(mount.join("kubepods/pod/own"));
    assert!(process_cgroup::freezers_in(&table, &second, own).len() <= table.lines().count());
    if let Some(kernel::Hierarchy::V1 { id, controller, .. }) =
        kernel::facts::hierarchy_in(&table, &second)
    {
        assert!(id != 0 && !controller.is_empty(), "{controller} has hierarchy {id}");
    }
    kernel::facts::version(&table);
    cgroup_path::parse(&second);
}
