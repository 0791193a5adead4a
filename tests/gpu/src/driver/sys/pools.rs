//! Pools from which memory is allocated in the order of a stream. A pool has device memory, host memory or
//! managed memory, as its properties say (`cuMemPoolCreate`). Only host memory does not count as the card's.

use super::{
    api, bound,
    memory::{Place, allocate},
    put,
};
use crate::{INVALID_VALUE, SUCCESS, lock, objects};
use std::{collections::BTreeMap, ffi::c_int, sync::Mutex};

/// The device's default pool.
const DEFAULT: usize = 0x500;
const MANAGED_DEFAULT: usize = 0x510;
const HOST_DEFAULT: usize = 0x520;

const ON_DEVICE: c_int = 1;
const MANAGED: c_int = 2;

/// Pools that programs created.
static POOLS: Mutex<BTreeMap<usize, Place>> = Mutex::new(BTreeMap::new());

fn place(kind: c_int, location: c_int) -> Place {
    match (kind, location) {
        (MANAGED, _) => Place::Managed,
        (_, ON_DEVICE) => Place::Device,
        _ => Place::Host,
    }
}

fn place_of(pool: usize) -> Option<Place> {
    match pool {
        DEFAULT => Some(Place::Device),
        MANAGED_DEFAULT => Some(Place::Managed),
        HOST_DEFAULT => Some(Place::Host),
        made => lock(&POOLS).get(&made).copied(),
    }
}

api! {
    // Properties begin with the kind of memory, the kinds of handles, and the location's kind and number.
    fn cuMemPoolCreate(pool: *mut usize, properties: *const [c_int; 4]) {
        if properties.is_null() {
            return INVALID_VALUE;
        }
        let [kind, _, location, _] = *properties;
        let number = objects().number();
        lock(&POOLS).insert(number, place(kind, location));
        put(pool, number)
    }

    fn cuMemPoolDestroy(pool: usize) {
        if lock(&POOLS).remove(&pool).is_some() { SUCCESS } else { INVALID_VALUE }
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut usize, _device: c_int) { put(pool, DEFAULT) }

    fn cuDeviceGetMemPool(pool: *mut usize, _device: c_int) { put(pool, DEFAULT) }

    fn cuMemGetDefaultMemPool(pool: *mut usize, location: *const [c_int; 2], kind: c_int) {
        put(pool, match place(kind, (*location)[0]) {
            Place::Device => DEFAULT,
            Place::Managed => MANAGED_DEFAULT,
            Place::Host | Place::Graph => HOST_DEFAULT,
        })
    }

    fn cuMemGetMemPool(pool: *mut usize, location: *const [c_int; 2], kind: c_int) {
        cuMemGetDefaultMemPool(pool, location, kind)
    }
}

bound! {
    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: usize, _stream: usize) {
        match place_of(pool) {
            Some(place) => allocate(address, bytes, place),
            None => INVALID_VALUE,
        }
    }
}
