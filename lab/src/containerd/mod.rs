//! A private containerd and runc, in their own mount namespace.
