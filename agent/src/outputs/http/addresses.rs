//! Addresses of the agent: the unix socket of people on the node, and the node's own addresses.

use anyhow::{Context, bail};
use std::{
    fs::{self, DirBuilder, Permissions},
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
    path::Path,
};
use tokio::net::{UnixListener, UnixStream};

/// Listens at `path`, for this user only. A socket that nobody answers on is replaced.
pub async fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let shown = path.display();
    let directory = path.parent().unwrap_or(path);
    // A folder of another path is made by the user: the path may be mistyped.
    if path == Path::new(super::DEFAULT_SOCKET) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
    } else if !directory.is_dir() {
        bail!("{} is not a folder; create it, or choose another --socket", directory.display());
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            bail!("{shown} exists and is not a socket; choose another path with --socket")
        }
        // Any other error, such as a full queue, is that of a socket on which somebody listens.
        Ok(_) => match UnixStream::connect(path).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
            }
            _ => bail!("another agent listens on {shown}; choose another path with --socket"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot inspect {shown}")),
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {shown}"))?;
    // Until then the umask decides who may connect; the listener refuses other users.
    let private = fs::set_permissions(path, Permissions::from_mode(0o600));
    private.with_context(|| format!("cannot restrict the permissions of {shown}"))?;
    Ok(listener)
}

/// The addresses of the default gateways, by which the kubelet of a node reaches a pod of it in most networks.
pub fn gateways() -> Vec<IpAddr> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let v4 = read("/proc/net/route");
    let v4 = v4.lines().filter_map(gateway_v4);
    let v6 = read("/proc/net/ipv6_route");
    let v6 = v6.lines().filter_map(gateway_v6);
    v4.chain(v6).collect()
}

/// Of a line of /proc/net/route: `eth0 00000000 0100F40A …`, in the machine's byte order.
fn gateway_v4(line: &str) -> Option<IpAddr> {
    let mut fields = line.split_whitespace().skip(1);
    let (destination, gateway) = (fields.next()?, fields.next()?);
    let gateway = u32::from_str_radix(gateway, 16).ok().filter(|gateway| *gateway != 0)?;
    (destination == "00000000").then(|| Ipv4Addr::from(gateway.to_ne_bytes()).into())
}

/// Of a line of /proc/net/ipv6_route: destination, its prefix' length, source, its prefix' length, next hop …
fn gateway_v6(line: &str) -> Option<IpAddr> {
    let mut fields = line.split_whitespace();
    let (length, hop) = (fields.nth(1)?, fields.nth(2)?);
    let hop = u128::from_str_radix(hop, 16).ok().filter(|hop| *hop != 0)?;
    (length == "00").then(|| Ipv6Addr::from(hop).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_gateways_are_read() {
        let line = "eth0\t00000000\t0100F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0";
        let wanted = IpAddr::from(Ipv4Addr::from(0x0100_F40A_u32.to_ne_bytes()));
        assert_eq!(gateway_v4(line), Some(wanted));
        assert_eq!(gateway_v4("eth0\t0000F40A\t00000000\t0001"), None);
        assert_eq!(gateway_v4("Iface\tDestination\tGateway \tFlags"), None);
        let line = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                    fe80000000000000000000000000000a 00000400 00000001 00000000 00000003 eth0";
        assert_eq!(gateway_v6(line), "fe80::a".parse().ok());
        assert_eq!(
            gateway_v6(&line.replace("fe80000000000000000000000000000a", &"0".repeat(32))),
            None
        );
        assert_eq!(gateway_v6(""), None);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/coroner.sock");
        assert!(listen(&path).await.unwrap_err().to_string().contains("is not a folder; create"));
        fs::create_dir(dir.path().join("run")).unwrap();
        let first = listen(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listen(&path).await.unwrap_err().to_string().contains("another agent"));
        drop(first);
        listen(&path).await.unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(listen(&file).await.unwrap_err().to_string().contains("not a socket"));
        assert!(file.exists());
    }
}
