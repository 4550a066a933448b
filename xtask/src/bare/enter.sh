#!/bin/sh
# Runs in a mount namespace of its own: makes a fresh root from TARBALL and runs a command in it.
#   enter.sh TARBALL ROOT CHECKOUT TARGET CARGO_HOME RUSTUP_HOME RUSTUP COMMAND...
# From the machine come only: the checkout with TARGET as its target folder, cargo's registry and where it
# is, rustup's toolchains, certificates, and the machine's kernel (/proc, /sys, /dev).
set -eu
tarball=$1 root=$2 checkout=$3 target=$4 cargo=$5 rustup=$6 program=$7
shift 7
mount --make-rprivate /
# What is mounted below would be removed with it: rm sees no border within one file system.
if grep -qF " $root/" /proc/self/mountinfo; then
    echo "something is mounted below $root: unmount it" >&2
    exit 1
fi
rm -rf --one-file-system "$root"
mkdir -p "$root"
tar --extract --file "$tarball" --directory "$root" --numeric-owner
mount --bind "$root" "$root"
for folder in proc sys dev; do
    mount --rbind "/$folder" "$root/$folder"
done
mount -t tmpfs tmpfs "$root/run"

bring() { # FROM [TO]: a folder, at its own path unless TO is given
    to=$root${2:-$1}
    mkdir -p "$1" "$to"
    mount --bind "$1" "$to"
}
bring "$checkout"
bring "$target" "$checkout/target"
bring "$checkout/target/failed"
bring "$rustup"
mount -o remount,bind,ro "$root$rustup"
bring "$cargo/registry"
bring "$cargo/git"
# Of cargo's configuration only where crates come from: compilers, linkers and folders are the person's own.
for file in config.toml config; do
    [ ! -f "$cargo/$file" ] || awk '
        /^[[:space:]]*\[/ { top = 0; kept = /^[[:space:]]*\[+[[:space:]]*(source|registry|registries|http|net)[].]/ }
        BEGIN { top = 1 }
        kept || (top && /^[[:space:]]*(source|registry|registries|http|net)\./)
    ' "$cargo/$file" >"$root$cargo/$file"
done
# Of cargo's own programs only rustup, which stands for the toolchain's; none that somebody installed.
mkdir -p "$root$cargo/bin"
cp "$program" "$root$cargo/bin/rustup"
for proxy in cargo cargo-clippy cargo-fmt clippy-driver rustc rustdoc rustfmt; do
    ln -s rustup "$root$cargo/bin/$proxy"
done
# How packages are fetched here: proxies, certificates and indexes; no packages, no keys of other archives.
apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|Retries)' >"$root/etc/apt/apt.conf.d/90machine" || true
# Removed first: those of the base are links with absolute targets, through which a copy would write to
# the machine's own files.
rm -rf "$root/etc/ssl/certs"
mkdir -p "$root/etc/ssl/certs"
cp -rL /etc/ssl/certs/. "$root/etc/ssl/certs/" 2>/dev/null || true
for file in /etc/hosts /etc/resolv.conf /etc/pip.conf; do
    [ ! -f "$file" ] || cp --remove-destination "$file" "$root/etc/"
done

cd "$root"
mkdir -p .old
pivot_root . .old # not chroot: the lab enters mount namespaces, and that leads out of a chroot
umount -l /.old
cd "$checkout"
exec "$@"
