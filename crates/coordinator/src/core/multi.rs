//! Several operations in one request: writes that happen all or not at all, or reads.

use super::requests::CreateRequest;
use super::{Core, Now, Output, READS_BYTES_MAX};
use crate::tree::acl::{Identity, PERM_READ};
use crate::tree::{Tree, Txn};
use crate::wire::{Code, MultiOp, OpResult, opcode};
use bytes::Bytes;

impl Core {
    /// Runs writes in one transaction. When one fails, the results are all errors: 0 for those before it, its own
    /// code, and "inconsistency" for those after it.
    pub(super) fn multi(
        &mut self,
        now: Now,
        session: i64,
        identities: &[Identity],
        ops: Vec<MultiOp>,
        out: &mut Vec<Output>,
    ) -> Vec<OpResult> {
        let count = ops.len();
        let mut txn = self.begin(now);
        let mut results = Vec::with_capacity(count);
        for op in ops {
            match write(&mut self.tree, &mut txn, session, identities, op) {
                Ok(result) => results.push(result),
                Err(code) => {
                    self.tree.rollback(txn);
                    let failed = results.len();
                    let code_of = |index: usize| match index.cmp(&failed) {
                        std::cmp::Ordering::Less => Code::Ok,
                        std::cmp::Ordering::Equal => code,
                        std::cmp::Ordering::Greater => Code::RuntimeInconsistency,
                    };
                    return (0..count).map(|index| OpResult::Error(code_of(index))).collect();
                }
            }
        }
        self.commit(txn, out);
        results
    }

    /// Runs reads, each for itself. An answer that would be too large is none.
    pub(super) fn multi_read(
        &self,
        identities: &[Identity],
        ops: Vec<MultiOp>,
    ) -> Result<Vec<OpResult>, Code> {
        let mut room = READS_BYTES_MAX;
        let mut read = |op| match op {
            MultiOp::GetData { path } => {
                let node = self.tree.node_for(&path, PERM_READ, identities)?;
                take(&mut room, node.record.data.as_ref().map_or(0, Bytes::len))?;
                Ok(OpResult::Data(node.record.data.clone(), node.stat()))
            }
            MultiOp::GetChildren { path } => {
                let node = self.tree.node_for(&path, PERM_READ, identities)?;
                take(&mut room, node.children().map(|name| 4 + name.len()).sum())?;
                Ok(OpResult::Children(node.children().map(str::to_owned).collect()))
            }
            MultiOp::Create { .. }
            | MultiOp::Delete { .. }
            | MultiOp::SetData { .. }
            | MultiOp::Check { .. } => unreachable!("decoding keeps reads and writes apart"),
        };
        let keep = |result| match result {
            Err(Code::Marshalling) => Err(Code::Marshalling),
            result => Ok(result.unwrap_or_else(OpResult::Error)),
        };
        ops.into_iter().map(|op| keep(read(op))).collect()
    }
}

/// Takes from the room of an answer; "marshalling" when it is used up, which no read of its own ends with.
fn take(room: &mut usize, size: usize) -> Result<(), Code> {
    *room = room.checked_sub(size).ok_or(Code::Marshalling)?;
    Ok(())
}

fn write(
    tree: &mut Tree,
    txn: &mut Txn,
    session: i64,
    identities: &[Identity],
    op: MultiOp,
) -> Result<OpResult, Code> {
    match op {
        MultiOp::Create { opcode, path, data, acl, flags, ttl_ms } => {
            let new = CreateRequest { opcode, path: &path, data, acl, flags, ttl_ms }.node(session)?;
            let (path, stat) = tree.create(txn, identities, new)?;
            let path = path.to_string();
            Ok(match opcode {
                opcode::CREATE => OpResult::Created(path),
                _ => OpResult::CreatedWithStat(path, stat),
            })
        }
        MultiOp::Delete { path, version } => {
            tree.delete(txn, identities, &path, version).map(|()| OpResult::Deleted)
        }
        MultiOp::SetData { path, data, version } => {
            let data = data.map(|data| Bytes::copy_from_slice(&data));
            tree.set_data(txn, identities, &path, data, version).map(OpResult::Set)
        }
        MultiOp::Check { path, version } => {
            tree.check(identities, &path, version).map(|()| OpResult::Checked)
        }
        MultiOp::GetData { .. } | MultiOp::GetChildren { .. } => {
            unreachable!("decoding keeps reads and writes apart")
        }
    }
}
