//! BookKeeper's v2 binary and v3 protobuf protocols, both directions
