//! A small Kubernetes apiserver: pods, nodes and events, with the real one's deletion arithmetic.
