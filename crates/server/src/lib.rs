//! Connections, lifecycle, admin HTTP and metrics of a bookie
