//! Byte budgets and owned permits
