//! Metadata store trait, the BookKeeper layout on it, ZooKeeper and memory drivers
