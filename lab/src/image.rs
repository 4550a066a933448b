//! The OCI image of the lab, made by hand from one static binary.
