//! Selects a termination report by pod name, namespace or UID.

use crate::outputs::report::{ended_at, seconds};
use coroner_core::report::PodTermination;
use std::{borrow::Borrow, collections::BTreeMap, fmt::Write};

/// Maximum number of pods listed in an error.
const LISTED: usize = 20;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodSelector<'a> {
    /// Name, NAMESPACE/NAME or UID; `None`: the only one there is.
    pub(super) pod: Option<&'a str>,
    pub(super) namespace: Option<&'a str>,
    /// Instance of a static pod; `None`: the last.
    pub(super) life: Option<u32>,
}

/// Why no report was selected. The text has the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SelectError {
    NotFound(String),
    Ambiguous(String),
}

impl PodSelector<'_> {
    pub(super) fn fits(&self, namespace: &str, name: &str, uid: &str) -> bool {
        if self.namespace.is_some_and(|wanted| wanted != namespace) {
            return false;
        }
        let Some(pod) = self.pod else { return true };
        match pod.split_once('/') {
            Some((space, pod)) => space == namespace && pod == name,
            None => pod == name || pod == uid,
        }
    }

    /// The one account that is meant. `all` may come in any order.
    pub(super) fn choose<'a, A: Borrow<PodTermination>>(
        &self,
        all: &'a [A],
    ) -> Result<&'a PodTermination, SelectError> {
        let all = || all.iter().map(Borrow::borrow);
        let mut found: BTreeMap<_, Vec<&PodTermination>> = BTreeMap::new();
        for one in all().filter(|a| self.fits(&a.pod.namespace, &a.pod.name, a.pod.uid.as_str())) {
            found.entry(&one.pod.uid).or_default().push(one);
        }
        if found.len() > 1 {
            return Err(SelectError::Ambiguous(several(self.pod, found.into_values().flatten())));
        }
        let Some((_, lives)) = found.pop_first() else {
            return Err(SelectError::NotFound(unknown(self, all())));
        };
        let wanted = lives.iter().filter(|a| self.life.is_none_or(|life| life == a.life));
        wanted.max_by_key(|a| (a.ended.time, a.life)).copied().ok_or_else(|| {
            let lives: Vec<_> = lives.iter().map(|a| a.life.to_string()).collect();
            SelectError::NotFound(format!(
                "instance {} of this pod is not available; --life can be {}",
                self.life.unwrap_or_default(),
                lives.join(", ")
            ))
        })
    }
}

fn several<'a>(pod: Option<&str>, found: impl Iterator<Item = &'a PodTermination>) -> String {
    let mut text = match pod {
        Some(pod) => format!("several pods are named {pod}; choose one by its UID"),
        None => "several pods terminated; choose one (NAME, NAMESPACE/NAME or UID)".to_owned(),
    };
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|a| (std::cmp::Reverse(a.began.time), a.ended));
    list(&mut text, &found);
    text
}

fn unknown<'a>(wanted: &PodSelector, all: impl Iterator<Item = &'a PodTermination>) -> String {
    let what = match (wanted.pod, wanted.namespace) {
        (Some(pod), Some(namespace)) => format!("of pod {pod} in namespace {namespace}"),
        (Some(pod), None) => format!("of pod {pod}"),
        (None, Some(namespace)) => format!("of a pod in namespace {namespace}"),
        (None, None) => "of any pod".to_owned(),
    };
    let mut text = format!("no termination {what} is recorded");
    let mut all: Vec<_> = all.collect();
    all.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    if !all.is_empty() {
        text.push_str("; recorded pods:");
        list(&mut text, &all);
    }
    text
}

fn list(text: &mut String, found: &[&PodTermination]) {
    for one in found.iter().take(LISTED) {
        let line = crate::outputs::report::log_line(one);
        let _ = write!(
            text,
            "\n  {}/{}  {}  ended {}  took {}",
            line.namespace,
            line.pod,
            line.uid,
            ended_at(one).unwrap_or_else(|| "-".into()),
            seconds(one.took)
        );
        if one.life > 1 {
            let _ = write!(text, "  life {}", one.life);
        }
    }
    if let Some(more) = found.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let _ = write!(text, "\n  … and {more} more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::report::samples::of;

    fn all() -> Vec<PodTermination> {
        vec![
            of("shop", "web-0", "u1", 1),
            of("shop", "web-0", "u2", 1),
            of("test", "web-0", "u3", 1),
            of("shop", "db-0", "u4", 1),
            of("kube-system", "etcd", "u5", 2),
            of("kube-system", "etcd", "u5", 1),
        ]
    }

    /// The UID and the life that are chosen by these.
    fn choose(
        pod: &str,
        namespace: Option<&str>,
        life: Option<u32>,
    ) -> Result<(String, u32), String> {
        let all = all();
        let wanted = PodSelector { pod: Some(pod), namespace, life };
        match wanted.choose(&all) {
            Ok(chosen) => Ok((chosen.pod.uid.to_string(), chosen.life)),
            Err(SelectError::NotFound(text)) => Err(format!("not found: {text}")),
            Err(SelectError::Ambiguous(text)) => Err(format!("ambiguous: {text}")),
        }
    }

    #[test]
    fn by_name_by_namespace_by_uid_and_by_life() {
        for (pod, namespace, life, uid, chosen) in [
            ("db-0", None, None, "u4", 1),
            ("shop/db-0", None, None, "u4", 1),
            ("u2", None, None, "u2", 1),
            ("test/web-0", None, None, "u3", 1),
            ("web-0", Some("test"), None, "u3", 1),
            ("etcd", None, None, "u5", 2),
            ("etcd", None, Some(1), "u5", 1),
        ] {
            assert_eq!(choose(pod, namespace, life), Ok((uid.to_owned(), chosen)), "{pod}");
        }
    }

    #[test]
    fn after_a_restart_of_the_agent_a_static_pods_lives_begin_again() {
        let mut last = of("kube-system", "etcd", "u5", 1);
        last.ended.time.0 += 1;
        let all =
            [last.clone(), of("kube-system", "etcd", "u5", 1), of("kube-system", "etcd", "u5", 2)];
        let wanted = PodSelector { pod: Some("etcd"), ..PodSelector::default() };
        assert_eq!(wanted.choose(&all), Ok(&last));
    }

    #[test]
    fn what_is_unknown_or_several_is_told_which_there_are() {
        for (pod, life, wanted) in [
            ("db-1", None, &["not found", "shop/db-0  u4", "kube-system/etcd  u5"][..]),
            ("test/db-0", None, &["not found"]),
            ("", None, &["not found"]),
            ("/", None, &["not found"]),
            ("web-0", None, &["ambiguous", "u1", "u2", "u3"]),
            ("shop/web-0", None, &["ambiguous", "u1", "u2"]),
            ("etcd", Some(3), &["not found", "--life can be 2, 1"]),
        ] {
            let text = choose(pod, None, life).unwrap_err();
            assert!(wanted.iter().all(|part| text.contains(part)), "{pod}: {text}");
        }
    }

    #[test]
    fn none_named_is_the_only_one_or_a_list() {
        let all = all();
        assert_eq!(PodSelector::default().choose(&all[3..4]).unwrap().pod.name, "db-0");
        assert!(matches!(PodSelector::default().choose(&all), Err(SelectError::Ambiguous(_))));
        let none: &[PodTermination] = &[];
        assert!(matches!(PodSelector::default().choose(none), Err(SelectError::NotFound(_))));
    }
}
