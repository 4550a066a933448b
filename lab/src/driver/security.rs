//! A container's securityContext → what the runtime is asked for (kuberuntime/security_context.go,
//! `determineEffectiveSecurityContext`; securitycontext/util.go). Pure.

use coroner_cri_api::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceOption, SecurityProfile,
    security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use std::path::Path;

/// Where the kubelet looks for Localhost profiles: below its root directory, `seccomp`.
pub const SECCOMP_PROFILES: &str = "/var/lib/kubelet/seccomp";

/// What no container sees unless its procMount says otherwise (securitycontext/util.go,
/// `defaultMaskedPaths`).
const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// What it cannot write to (`defaultReadonlyPaths`).
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The container's own word, and where it is silent, the pod's.
pub(super) fn context(
    spec: Option<&PodSpec>,
    container: &Container,
    namespaces: NamespaceOption,
) -> LinuxContainerSecurityContext {
    let (no_pod, none) = (PodSecurityContext::default(), SecurityContext::default());
    let pod = spec.and_then(|spec| spec.security_context.as_ref()).unwrap_or(&no_pod);
    let own = container.security_context.as_ref().unwrap_or(&none);
    let id = |value: Option<i64>| value.map(|value| Int64Value { value });
    let capabilities = own.capabilities.as_ref().map(|capabilities| Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        ..Default::default()
    });
    let strings = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect();
    LinuxContainerSecurityContext {
        capabilities,
        privileged: own.privileged == Some(true),
        namespace_options: Some(namespaces),
        run_as_user: id(own.run_as_user.or(pod.run_as_user)),
        run_as_group: id(own.run_as_group.or(pod.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: strings(&MASKED),
        readonly_paths: strings(&READ_ONLY),
        seccomp: Some(seccomp(own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()))),
        apparmor: own.app_armor_profile.as_ref().or(pod.app_armor_profile.as_ref()).map(app_armor),
        ..Default::default()
    }
}

/// Unconfined if nobody says otherwise (the kubelet's `seccompDefault` is off).
fn seccomp(profile: Option<&SeccompProfile>) -> SecurityProfile {
    let name = profile.and_then(|profile| profile.localhost_profile.as_deref()).unwrap_or_default();
    match profile.map(|profile| profile.type_.as_str()) {
        Some("RuntimeDefault") => of(ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            let file = Path::new(SECCOMP_PROFILES).join(name);
            of(ProfileType::Localhost, file.display().to_string())
        }
        _ => of(ProfileType::Unconfined, String::new()),
    }
}

fn app_armor(profile: &AppArmorProfile) -> SecurityProfile {
    match profile.type_.as_str() {
        "Localhost" => {
            of(ProfileType::Localhost, profile.localhost_profile.clone().unwrap_or_default())
        }
        "Unconfined" => of(ProfileType::Unconfined, String::new()),
        _ => of(ProfileType::RuntimeDefault, String::new()),
    }
}

fn of(kind: ProfileType, localhost_ref: String) -> SecurityProfile {
    SecurityProfile { profile_type: kind.into(), localhost_ref }
}
