//! Ledger storage: entry logs, extents, ledger state tables
