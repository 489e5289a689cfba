//! The bookie's state machine over journal and storage
