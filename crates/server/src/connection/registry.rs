//! Open connections by number. A number is a slot and a generation, so that the answer to a request of a closed
//! connection never reaches the one that took its slot.

use crate::connection::Connection;
use crate::connection::connection_limits::ConnectionLimits;
use parking_lot::RwLock;
use std::sync::Arc;

#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Arc<Connection>>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// See the module. Bounded by the number of connections accepted.
#[derive(Default)]
pub struct Registry {
    slots: RwLock<Slots>,
    door: ConnectionLimits,
}

impl Registry {
    /// The limits on new connections.
    pub fn door(&self) -> &ConnectionLimits {
        &self.door
    }

    /// Adds the connection that `make` builds for its number.
    pub(super) fn insert(&self, make: impl FnOnce(u64) -> Connection) -> Arc<Connection> {
        let mut slots = self.slots.write();
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                slots.slots.push(Slot::default());
                u32::try_from(slots.slots.len() - 1).expect("connections are bounded far below that")
            }
        };
        let slot = &mut slots.slots[index as usize];
        let connection = Arc::new(make(u64::from(slot.generation) << 32 | u64::from(index)));
        slot.connection = Some(connection.clone());
        connection
    }

    /// The connection of this number, unless it is gone.
    pub fn get(&self, id: u64) -> Option<Arc<Connection>> {
        let slots = self.slots.read();
        let slot = slots.slots.get(id as u32 as usize)?;
        if slot.generation == (id >> 32) as u32 { slot.connection.clone() } else { None }
    }

    /// Forgets a connection; its number is never used again.
    pub(super) fn remove(&self, id: u64) {
        let removed = {
            let mut slots = self.slots.write();
            let index = id as u32;
            let slot = &mut slots.slots[index as usize];
            assert_eq!(slot.generation, (id >> 32) as u32, "a connection is removed once");
            slot.generation = slot.generation.wrapping_add(1);
            let removed = slot.connection.take();
            slots.free.push(index);
            removed
        };
        drop(removed);
    }

    /// All open connections.
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.slots.read().slots.iter().filter_map(|slot| slot.connection.clone()).collect()
    }
}
