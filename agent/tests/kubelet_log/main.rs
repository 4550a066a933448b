//! The kubelet's own log, as real kubelets of 1.23 to 1.36 wrote it, and the systemd journal's files.

mod journal;
mod recordings;
