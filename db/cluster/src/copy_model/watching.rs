//! Servers of the model that watch each other and take places by themselves: which ones they take for gone, and how it
//! ends where one never comes back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::Rng;

use super::{CopyWorld, LEASE, SERVERS, SLOTS, id_of};
use crate::broken_rules::BROKEN;
use crate::copy_coordinator::{CopyName, CopyPosition, SuccessionRequest};
use crate::copy_watch::{CopyWatch, LifeAnswer, LifeQuestion, ObservedOwner, TickPace};
use crate::limits::ASK_TICKS_LEAST;

/// Rounds in which all that can be taken is taken.
const ROUNDS: usize = 800;

/// What a server knows of the owners of the copies that it has.
#[derive(Default)]
pub(super) struct ModelWatch {
    watch: CopyWatch,
    /// Questions about each copy since the server's start, and whether the last one was confirmed.
    heard: BTreeMap<CopyName, (u64, bool)>,
    /// What is asked, and for how many ticks.
    asked: Vec<(LifeQuestion, u64)>,
    /// When it has ticked last.
    ticked: u64,
}

impl ModelWatch {
    /// An owner has asked a copy.
    pub(super) fn hear(&mut self, name: &CopyName, confirms: bool) {
        let heard = self.heard.entry(name.clone()).or_default();
        *heard = (heard.0 + 1, confirms);
    }
}

impl CopyWorld {
    /// Whether a server answers nothing now.
    fn is_silent(&self, id: &str) -> bool {
        let is = |number: usize| id_of(number) == id;
        self.hurry.is_some_and(|hurry| is(hurry.hangs)) || self.dead.is_some_and(is)
    }

    /// A tick of a server that watches, and what it wants because of it.
    pub(super) fn watch(&mut self, at: usize) {
        let (now, random) = (self.now, self.random.random_ratio(1, 3));
        let copies = std::sync::Arc::clone(self.servers[at].member.copies());
        let is_well = self.random.random_ratio(1, 4);
        copies.set_well(|_| is_well);
        let owners = copies.copy_owners();
        let silent: Vec<bool> = owners.iter().map(|one| self.is_silent(&one.owner)).collect();
        let server = &mut self.servers[at];
        let own = &mut server.watching;
        let seen = |one: &crate::copy_coordinator::CopyOwner| {
            let heard = own.heard.get(&(one.owner.clone(), one.copy)).map_or(0, |heard| heard.0);
            ObservedOwner { owner: one.owner.clone(), boot: one.boot, questions: heard, is_asking: false }
        };
        let seen: Vec<ObservedOwner> = owners.iter().map(seen).collect();
        let pace = if now >= own.ticked + LEASE { TickPace::Slept } else { TickPace::Timely };
        own.ticked = now;
        let questions = own.watch.tick(pace, &seen);
        own.asked.extend(questions.into_iter().map(|question| (question, 0)));
        for (question, ticks) in std::mem::take(&mut own.asked) {
            let is_silent = owners.iter().zip(&silent).any(|(one, silent)| one.owner == question.owner && *silent);
            match (is_silent, ticks > ASK_TICKS_LEAST) {
                (true, true) => own.watch.answer(&question, LifeAnswer::Silent),
                // An answer may be lost.
                (false, is_over) if is_over || random => own.watch.answer(&question, LifeAnswer::Serves),
                _ => own.asked.push((question, ticks + 1)),
            }
        }
        let gone: Vec<(String, u64)> = own.watch.gone().map(|(owner, boot)| (owner.to_owned(), boot)).collect();
        let may = |(owner, boot): &(String, u64)| self.hurdle_of(at, owner, *boot).is_none();
        let wished = gone.into_iter().find(may);
        self.request(at, wished);
    }

    /// Why a server does not take the place of one that is gone.
    fn hurdle_of(&self, at: usize, owner: &str, boot: u64) -> Option<String> {
        let server = &self.servers[at];
        let copies = server.member.copies();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap_or_else(Instant::now);
        if let Some(obstacle) = copies.place_hurdle(owner, boot, long_ago) {
            return Some(format!("{obstacle:?}"));
        }
        let copy = copies.place_copy(owner);
        let confirms = copy.and_then(|name| server.watching.heard.get(&name)).is_some_and(|heard| heard.1);
        (!confirms).then(|| "its copy has confirmed nothing".to_owned())
    }

    /// Sets which place a server wants to take.
    pub(super) fn request(&mut self, at: usize, owner: Option<(String, u64)>) {
        let until = Instant::now() + Duration::from_secs(60);
        let copies = self.servers[at].member.copies();
        let request = owner.and_then(|(owner, boot)| {
            let copy = copies.place_copy(&owner)?;
            Some(SuccessionRequest { owner, copy, boot, directory_revision: 0, until, silent_ms: 0 })
        });
        copies.request_succession(request);
    }

    /// A server wants any place, whatever it has heard: what is safe does not depend on that.
    pub(super) fn wish_any(&mut self, at: usize) {
        let owner = id_of(self.random.random_range(0..SERVERS));
        let boot = self.servers[at].member.copies().server(&owner).map_or(0, |(server, _)| server.boot);
        self.request(at, Some((owner, boot)));
    }

    /// A server never comes back, and the others have no faults. Its place is taken, or each of them that could says
    /// what stands in the way. Returns whether it is taken.
    pub(super) fn bury(&mut self, dead: usize) -> Result<bool, u16> {
        (self.has_faults, self.hurry, self.full, self.dead) = (false, None, None, Some(dead));
        self.store.between.clear();
        let others: Vec<usize> = (0..SERVERS).filter(|at| *at != dead).collect();
        let gone = id_of(dead);
        for _ in 0..ROUNDS {
            self.now += 1;
            for at in &others {
                self.look(*at);
                self.ship(*at);
                self.choose_living(*at, dead);
                self.inherit(*at);
                self.answer(*at)?;
                self.clear(*at);
                self.watch(*at);
            }
            if self.is_buried(&others, &gone) {
                break;
            }
        }
        if self.is_buried(&others, &gone) {
            for slot in SLOTS {
                let owner = others.iter().find(|at| self.servers[**at].coordinator.slots().owns_slot(slot));
                let Some(owner) = owner else { continue };
                let found = self.servers[*owner].records.get(&slot).copied().unwrap_or(0);
                if found < self.truth.get(&slot).copied().unwrap_or(0) {
                    return Err(slot);
                }
            }
            return Ok(true);
        }
        let map = self.servers[others[0]].member.copies().peers().map;
        let is_under_way = map.succession().is_some();
        for at in others {
            let boot = self.servers[at].member.copies().server(&gone).map_or(0, |(server, _)| server.boot);
            let obstacle = self.hurdle_of(at, &gone, boot);
            // A succession that a lost copy, or the dead server itself, has begun does not end.
            let is_explained = obstacle.is_some() || is_under_way || BROKEN.get().is_some();
            assert!(is_explained, "a place is not taken, and nothing stands in the way");
        }
        Ok(false)
    }

    fn is_buried(&self, others: &[usize], gone: &str) -> bool {
        others.iter().all(|at| {
            let map = self.servers[*at].member.copies().peers().map;
            map.succession().is_none() && map.spans_of(gone).next().is_none()
        })
    }

    /// A server has a copy on one that lives.
    fn choose_living(&mut self, at: usize, dead: usize) {
        let living = id_of((0..SERVERS).find(|other| *other != at && *other != dead).expect("a third server"));
        let needed = self.servers[at].member.copies().needed();
        if !needed.is_empty() && needed.iter().all(|name| name.0 == living && self.has_open_copy(at, name)) {
            return;
        }
        let server = &self.servers[at];
        let good = server.held.iter().find(|(name, copy)| {
            name.0 == living && (copy.held.is_none() && !needed.contains(*name) || self.has_open_copy(at, name))
        });
        let good = good.map(|(name, _)| name.clone());
        let server = &mut self.servers[at];
        match good {
            Some(name) => drop(server.member.copies().want(vec![name], &server.held)),
            None => {
                self.numbers += 1;
                server.held.insert((living, self.numbers), CopyPosition::default());
            }
        }
    }

    fn has_open_copy(&self, of: usize, name: &CopyName) -> bool {
        let number = (0..SERVERS).find(|number| id_of(*number) == name.0).expect("a server");
        let found = self.servers[number].copies.get(&(self.servers[of].id.clone(), name.1));
        found.is_some_and(|copy| !copy.is_sealed)
    }
}
