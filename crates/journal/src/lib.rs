//! The journal (write-ahead log): records, groups, files, replay
