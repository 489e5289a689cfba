//! One request of a client, after its session was opened.

use super::{CREDENTIALS_SIZE_MAX, Core, IDENTITIES_MAX, Now, Output, Parsed, REQUEST_OVERHEAD_BYTES, auth};
use crate::tree::acl::{self, Identity, PERM_ADMIN, PERM_READ};
use crate::tree::{CONTAINER_OWNER, NewNode, Tree, Txn, ttl_owner};
use crate::watches::{ConnectionId, Weight};
use crate::wire::{
    Acl, Code, CreateFlags, EventKind, Header, NO_ZXID, Reply, Request, WatchMode, XID_PING, notification,
    opcode,
};
use bytes::Bytes;
use std::sync::Arc;

/// What the parts of a request share.
pub(super) struct Call {
    now: Now,
    connection: ConnectionId,
    session: i64,
    identities: Vec<Identity>,
    xid: i32,
}

/// A create as a client asks for it.
pub(super) struct CreateRequest<'a> {
    pub(super) opcode: i32,
    pub(super) path: &'a str,
    pub(super) data: Option<Bytes>,
    pub(super) acl: Vec<Acl>,
    pub(super) flags: i32,
    /// -1 for none.
    pub(super) ttl_ms: i64,
}

impl<'a> CreateRequest<'a> {
    /// The node, as the tree takes it.
    pub(super) fn node(self, session: i64) -> Result<NewNode<'a>, Code> {
        let CreateRequest { opcode, path, data, acl, flags, ttl_ms } = self;
        let flags = CreateFlags::from_number(flags).ok_or(Code::BadArguments)?;
        let owner = match (opcode, flags) {
            _ if flags.is_ttl => ttl_owner(ttl_ms).ok_or(Code::BadArguments)?,
            // A time without the flag for it.
            (opcode::CREATE_TTL, _) => return Err(Code::BadArguments),
            (opcode::CREATE_CONTAINER, _) => CONTAINER_OWNER,
            (_, CreateFlags { is_ephemeral: true, .. }) => session,
            _ => 0,
        };
        // Copied, so that the node does not keep the receive buffer.
        let data = data.map(|data| Bytes::copy_from_slice(&data));
        Ok(NewNode { path, data, acl, owner, is_sequential: flags.is_sequential })
    }
}

impl Core {
    /// A frame of a connection that has a session.
    pub(crate) fn on_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        frame: Bytes,
        out: &mut Vec<Output>,
    ) {
        let Some(client) = self.clients.get(&connection).filter(|client| !client.is_closing) else { return };
        // Without a session it is being dropped.
        let Some(session) = client.session else { return };
        let identities = client.identities.clone();
        let frame_len = frame.len();
        let Ok((Header { xid, opcode }, record)) = Header::split(frame) else {
            out.push(Output::Drop(connection));
            return;
        };
        let request = Request::parse(opcode, record);
        let call = Call { now, connection, session, identities, xid };
        if opcode == opcode::AUTH {
            return self.on_auth(call, request, out);
        }
        if !self.sessions.touch(session, now.monotonic_ms) {
            // It has just ended; its connection is being closed.
            return;
        }
        let before = self.zxid;
        match request {
            Ok(request) => self.perform(&call, request, out),
            Err(_) => self.fail(&call, Code::Marshalling, out),
        }
        // A write that failed leaves nothing to make durable, and no batch would come for it.
        if self.zxid != before && self.has_changes() {
            self.pending_bytes += frame_len + REQUEST_OVERHEAD_BYTES;
        }
        self.bound_watches(out);
    }

    /// Beyond the limits on watches the connection that has most of them goes, and not the one that asked last: that may be
    /// anybody.
    fn bound_watches(&mut self, out: &mut Vec<Output>) {
        loop {
            let (watches, bytes) = (self.watches.len(), self.watches.path_bytes());
            let weight = if watches > self.config.watches_max {
                Weight::Watches
            } else if bytes > self.config.watched_bytes_max {
                Weight::PathBytes
            } else {
                return;
            };
            let (connection, its) = self.watches.heaviest(weight).expect("there are watches");
            tracing::warn!(
                ?connection, its, by = ?weight, watches, bytes,
                "watches exceed a limit, closing the connection with the most of them"
            );
            self.on_disconnect(connection);
            out.push(Output::Drop(connection));
        }
    }

    fn perform(&mut self, call: &Call, request: Request, out: &mut Vec<Output>) {
        match request {
            Request::Create { opcode, path, data, acl, flags, ttl_ms } => {
                let new = CreateRequest { opcode, path: &path, data, acl, flags, ttl_ms }.node(call.session);
                let created = self.write(call, out, |tree, txn| tree.create(txn, &call.identities, new?));
                self.answer(call, out, created, |reply, (path, stat)| match opcode {
                    opcode::CREATE => reply.string(&path),
                    _ => reply.string(&path).stat(&stat),
                });
            }
            Request::Delete { path, version } => {
                let done =
                    self.write(call, out, |tree, txn| tree.delete(txn, &call.identities, &path, version));
                self.answer(call, out, done, |reply, ()| reply);
            }
            Request::DeleteContainer { path } => {
                let done = self.write(call, out, |tree, txn| tree.delete_container(txn, &path));
                self.answer(call, out, done, |reply, ()| reply);
            }
            Request::SetData { path, data, version } => {
                let data = data.map(|data| Bytes::copy_from_slice(&data));
                let ids = &call.identities;
                let stat = self.write(call, out, |tree, txn| tree.set_data(txn, ids, &path, data, version));
                self.answer(call, out, stat, |reply, stat| reply.stat(&stat));
            }
            Request::SetAcl { path, acl, version } => {
                let ids = &call.identities;
                let stat = self.write(call, out, |tree, txn| tree.set_acl(txn, ids, &path, acl, version));
                self.answer(call, out, stat, |reply, stat| reply.stat(&stat));
            }
            Request::Multi(ops) => {
                let results = self.multi(call.now, call.session, &call.identities, ops, out);
                self.answer(call, out, Ok(results), |reply, results| reply.results(&results));
            }
            Request::MultiRead(ops) => {
                let results = self.multi_read(&call.identities, ops);
                self.answer(call, out, results, |reply, results| reply.results(&results));
            }
            Request::Exists { path, watch } => self.exists(call, &path, watch, out),
            Request::GetData { path, watch } => self.get_data(call, &path, watch, out),
            Request::GetChildren { path, watch, with_stat } => {
                self.get_children(call, &path, watch, with_stat, out);
            }
            Request::GetAcl { path } => self.get_acl(call, &path, out),
            Request::GetAllChildrenNumber { path } => {
                let allowed = self.tree.node_for(&path, PERM_READ, &call.identities).map(drop);
                // Below the root's other name ZooKeeper counts the root, too.
                let other_name = i32::from(path.is_empty());
                let below = |()| i32::try_from(self.tree.descendants(&path)).unwrap_or(i32::MAX);
                let count = allowed.map(below).map(|below| below.saturating_add(other_name));
                self.answer(call, out, count, Reply::i32);
            }
            Request::GetEphemerals { prefix } => {
                let is_all = prefix.trim().is_empty() || prefix.trim() == "/";
                let wanted = |path: &&Arc<str>| is_all || path.starts_with(&prefix);
                let paths: Vec<Arc<str>> =
                    self.tree.ephemerals_of(call.session).filter(wanted).cloned().collect();
                self.answer(call, out, Ok(paths), |reply, paths| {
                    reply.strings(paths.iter().map(|path| &**path))
                });
            }
            // Everything earlier is in force already, and the answer waits until it is durable.
            Request::Sync { path } => self.answer(call, out, Ok(()), |reply, ()| reply.string(&path)),
            Request::Ping => {
                out.push(Output::Frame(call.connection, Reply::bare(XID_PING, self.zxid, Code::Ok)));
            }
            Request::CheckWatches { path, target } => {
                let there = self.watches.contains(&path, call.connection, target);
                self.answer(call, out, there.then_some(()).ok_or(Code::NoWatcher), |reply, ()| reply);
            }
            Request::RemoveWatches { path, target } => {
                let there = self.watches.remove(&path, call.connection, target);
                self.answer(call, out, there.then_some(()).ok_or(Code::NoWatcher), |reply, ()| reply);
            }
            Request::AddWatch { path, mode } => {
                match mode {
                    WatchMode::Persistent => self.watches.add_persistent(&path, call.connection),
                    WatchMode::Recursive => self.watches.add_recursive(&path, call.connection),
                }
                self.answer(call, out, Ok(()), |reply, ()| reply.i32(0));
            }
            Request::SetWatches { relative_zxid, data, exist, children, persistent, recursive } => {
                self.set_watches(call, relative_zxid, &data, &exist, &children, out);
                for path in persistent {
                    self.watches.add_persistent(&path, call.connection);
                }
                for path in recursive {
                    self.watches.add_recursive(&path, call.connection);
                }
                self.answer(call, out, Ok(()), |reply, ()| reply);
            }
            Request::WhoAmI => {
                self.answer(call, out, Ok(()), |reply, ()| {
                    let shown =
                        call.identities.iter().map(|identity| (identity.scheme, auth::user(identity)));
                    reply.identities(shown)
                });
            }
            Request::CloseSession => {
                self.end_session(call.now, call.session, out);
                self.answer(call, out, Ok(()), |reply, ()| reply);
                self.close(call.connection, out);
            }
            Request::Sasl | Request::Reconfig => self.fail(call, Code::Unimplemented, out),
            Request::Auth { .. } => unreachable!("answered before"),
            Request::Unknown => {
                let refusal = Reply::bare(call.xid, NO_ZXID, Code::Unimplemented);
                out.push(Output::Frame(call.connection, refusal));
                self.close(call.connection, out);
            }
        }
    }

    /// Runs one write in a transaction of its own.
    fn write<T>(
        &mut self,
        call: &Call,
        out: &mut Vec<Output>,
        act: impl FnOnce(&mut Tree, &mut Txn) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let mut txn = self.begin(call.now);
        match act(&mut self.tree, &mut txn) {
            Ok(done) => {
                self.commit(txn, out);
                Ok(done)
            }
            Err(code) => {
                self.tree.rollback(txn);
                Err(code)
            }
        }
    }

    fn answer<T>(
        &self,
        call: &Call,
        out: &mut Vec<Output>,
        result: Result<T, Code>,
        fill: impl FnOnce(Reply, T) -> Reply,
    ) {
        let frame = match result {
            Ok(value) => fill(Reply::new(call.xid, self.zxid, Code::Ok), value).finish(),
            Err(code) => Reply::bare(call.xid, self.zxid, code),
        };
        out.push(Output::Frame(call.connection, frame));
    }

    fn fail(&self, call: &Call, code: Code, out: &mut Vec<Output>) {
        self.answer(call, out, Err::<(), Code>(code), |reply, ()| reply);
    }

    fn on_auth(&mut self, call: Call, request: Parsed, out: &mut Vec<Output>) {
        let Ok(Request::Auth { scheme, auth }) = request else {
            out.push(Output::Drop(call.connection));
            return;
        };
        let is_too_much = auth.as_ref().is_some_and(|auth| auth.len() > CREDENTIALS_SIZE_MAX)
            || call.identities.len() >= IDENTITIES_MAX;
        let proven = auth::identity(&scheme, auth.as_deref(), &call.identities);
        match proven.filter(|proven| call.identities.contains(proven) || !is_too_much) {
            Some(identity) => {
                if let Some(client) = self.clients.get_mut(&call.connection)
                    && !client.identities.contains(&identity)
                {
                    client.identities.push(identity);
                }
                out.push(Output::Frame(call.connection, Reply::bare(call.xid, 0, Code::Ok)));
            }
            None => {
                out.push(Output::Frame(call.connection, Reply::bare(call.xid, 0, Code::AuthFailed)));
                self.close(call.connection, out);
            }
        }
    }

    fn exists(&mut self, call: &Call, path: &str, watch: bool, out: &mut Vec<Output>) {
        if path.contains('\0') {
            return self.fail(call, Code::BadArguments, out);
        }
        // Unlike the other reads, one that finds nothing leaves its watch: it waits for the creation.
        let found = match self.tree.node(path) {
            None => Err(Code::NoNode),
            Some(node) => match acl::check(&node.record.acl, PERM_READ, &call.identities) {
                Ok(()) => Ok(node.stat()),
                Err(code) => return self.fail(call, code, out),
            },
        };
        if watch {
            self.watches.add_data(path, call.connection);
        }
        self.answer(call, out, found, |reply, stat| reply.stat(&stat));
    }

    fn get_data(&mut self, call: &Call, path: &str, watch: bool, out: &mut Vec<Output>) {
        let found = self.tree.node_for(path, PERM_READ, &call.identities);
        if watch && found.is_ok() {
            self.watches.add_data(path, call.connection);
        }
        self.answer(call, out, found, |reply, node| {
            reply.buffer(node.record.data.as_deref()).stat(&node.stat())
        });
    }

    fn get_children(&mut self, call: &Call, path: &str, watch: bool, with_stat: bool, out: &mut Vec<Output>) {
        let found = self.tree.node_for(path, PERM_READ, &call.identities);
        if watch && found.is_ok() {
            self.watches.add_children(path, call.connection);
        }
        self.answer(call, out, found, |reply, node| {
            let reply = reply.strings(node.children());
            if with_stat { reply.stat(&node.stat()) } else { reply }
        });
    }

    fn get_acl(&mut self, call: &Call, path: &str, out: &mut Vec<Output>) {
        let found = self.tree.node_for(path, PERM_READ | PERM_ADMIN, &call.identities);
        self.answer(call, out, found, |reply, node| {
            let rules = &node.record.acl;
            let reply = match acl::allows(rules, PERM_ADMIN, &call.identities) {
                true => reply.acl(rules.iter()),
                false => reply.acl(acl::masked(rules).iter()),
            };
            reply.stat(&node.stat())
        });
    }

    /// Sets watches again after a reconnect: those that a change since `relative_zxid` would have fired fire now.
    fn set_watches(
        &mut self,
        call: &Call,
        relative_zxid: i64,
        data: &[String],
        exist: &[String],
        children: &[String],
        out: &mut Vec<Output>,
    ) {
        let connection = call.connection;
        let mut fire = |kind, path: &str| {
            out.push(Output::Frame(connection, notification(kind, path, None)));
        };
        for path in data {
            match self.tree.node(path).map(|node| node.record.mzxid) {
                None => fire(EventKind::Deleted, path),
                Some(mzxid) if mzxid > relative_zxid => fire(EventKind::DataChanged, path),
                Some(_) => self.watches.add_data(path, connection),
            }
        }
        for path in exist {
            match self.tree.node(path) {
                Some(_) => fire(EventKind::Created, path),
                None => self.watches.add_data(path, connection),
            }
        }
        for path in children {
            match self.tree.node(path).map(|node| node.record.pzxid) {
                None => fire(EventKind::Deleted, path),
                Some(pzxid) if pzxid > relative_zxid => fire(EventKind::ChildrenChanged, path),
                Some(_) => self.watches.add_children(path, connection),
            }
        }
    }
}
