//! Who may look: a link that works once becomes a cookie.

use std::sync::{Mutex, PoisonError};

use fednode_runtime::token;

/// The parameter of a link.
pub(crate) const TICKET: &str = "ticket";

/// Lets people in.
#[derive(Debug)]
pub(crate) struct Door {
    /// What the next link carries.
    ticket: Mutex<String>,
    /// What the cookie carries.
    session: String,
    /// The cookie's name: cookies know no ports, and several pages may run on a machine.
    cookie: String,
}

impl Door {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            ticket: Mutex::new(token::new()),
            session: token::new(),
            cookie: format!("fednode-page-{port}"),
        }
    }

    /// Returns the ticket that works now.
    pub(crate) fn ticket(&self) -> String {
        self.held().clone()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, String> {
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spends a ticket: if it works, it does so no more, and the next one is another.
    pub(crate) fn spend(&self, given: &str) -> bool {
        let mut ticket = self.held();
        let is_right = token::equal(given, &ticket);
        if is_right {
            *ticket = token::new();
        }
        is_right
    }

    /// Returns the header that gives the cookie. Scripts cannot read it. A link on another page may open this one, and nothing
    /// else there sends the cookie: every request only reads, and no other page may frame this one or read its answers.
    pub(crate) fn cookie(&self) -> String {
        let Self {
            cookie, session, ..
        } = self;
        format!("{cookie}={session}; HttpOnly; SameSite=Lax; Path=/")
    }

    /// Tells whether a request's cookies hold the right one.
    pub(crate) fn is_open_to(&self, cookies: &str) -> bool {
        let pairs = cookies
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='));
        let mut ours = pairs.filter(|(name, _)| *name == self.cookie);
        ours.any(|(_, value)| token::equal(value, &self.session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_works_once() {
        let door = Door::new(80);
        let ticket = door.ticket();
        assert!(!door.spend("") && !door.spend(&ticket[1..]));
        assert!(door.spend(&ticket));
        assert!(!door.spend(&ticket));
        assert!(door.spend(&door.ticket()));
    }

    #[test]
    fn only_the_cookie_of_this_page_opens() {
        let (door, other) = (Door::new(80), Door::new(81));
        let pair = |door: &Door| door.cookie().split(';').next().unwrap().to_owned();
        assert!(door.is_open_to(&pair(&door)));
        assert!(door.is_open_to(&format!("a=b; {}; c", pair(&door))));
        assert!(!door.is_open_to(""));
        assert!(!door.is_open_to(&pair(&other)));
        assert!(!door.is_open_to("fednode-page-80="));
    }
}
