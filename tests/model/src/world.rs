//! What may happen, one step at a time.

use stateright::{Model, Property};

use crate::node::{Entry, LOG_MAX, Log, Node};
use crate::{EXCLUSIVE, Rule};

const NODES: usize = 3;
/// Most keepalives under way at a time.
const KEEP_ALIVES: usize = 2;
/// Most questions of leaders under way at a time, with their answers.
const QUESTIONS: usize = 2;

/// How large the model is.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last term.
    pub terms: u8,
    /// The longest log; at most 5.
    pub log: usize,
    /// The lease of X, ticks. Two, so that it can be fresh, half over, and over, is the least.
    pub ttl: u8,
    /// How many keepalives may be under way at a time: 1 or 2.
    pub keep_alives: usize,
    /// How many questions of quorum rounds, or answers to them, may be under way at a time: 1 or 2.
    pub questions: usize,
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// How large it is.
    pub bounds: Bounds,
    /// The rule that does not hold in it.
    pub without: Option<Rule>,
}

/// A keepalive that is under way. `age` is counted by X, in ticks since it sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum KeepAlive {
    None,
    Sent {
        age: u8,
    },
    /// It came in; `lease` is what is left of a TTL counted from there.
    At {
        node: usize,
        age: u8,
        lease: u8,
        confirmed: bool,
        /// Bit `i`: question `i` was sent after it came in.
        asked: u8,
    },
    Answered {
        age: u8,
    },
}

/// A message of a quorum round, which may be late or lost: a leader asks one other node, and is
/// answered. With itself that is a quorum. It ends with the tenure of its leader, who counts no
/// answer to a question of another tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Question {
    None,
    Asked {
        leader: usize,
        other: usize,
    },
    /// The other one has accepted the leader's vote, and says so.
    Accepted {
        leader: usize,
    },
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    keep_alives: [KeepAlive; KEEP_ALIVES],
    questions: [Question; QUESTIONS],
    /// Ticks for which X is sure that its session lives. What it held when they were over is lost
    /// for ever (§5.6); what the same session is granted after another answer is not.
    safe: u8,
    /// An effective `ExpireSession` of X is committed.
    y_granted: bool,
}

/// A step. Numbers are places of nodes in the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it; see `World::next_state`")]
pub enum Action {
    Tick,
    Send,
    SendAgain { which: usize },
    Lose { which: usize },
    Receive { which: usize, at: usize },
    Ask { leader: usize, other: usize },
    LoseQuestion { which: usize },
    Accept { which: usize },
    Count { which: usize },
    Answer { which: usize, leader: usize },
    Deliver { which: usize },
    FindOverdue { leader: usize },
    ProposeExpiry { leader: usize },
    Append { leader: usize, other: usize },
    LearnCommit { leader: usize },
    Apply { leader: usize },
    Elect { candidate: usize, voter: usize, term: u8 },
    Restart { node: usize },
    LoseData { node: usize },
}

impl Model for World {
    type State = State;
    type Action = Action;

    /// Node 0 leads the first term with X's session just opened.
    fn init_states(&self) -> Vec<State> {
        let mut log = Log::default();
        log.push(Entry { term: 1, heard_in: 0 });
        let follower = Node { term: 1, voted: true, log, ..Node::default() };
        let deadline = Some(self.bounds.ttl);
        let leader = Node { leads: true, matched: 1, commit: 1, applied: 1, deadline, ..follower };
        let away = Node { voted: false, ..follower };
        let nodes = [leader, follower, away];
        let (keep_alives, safe) = ([KeepAlive::None; KEEP_ALIVES], self.bounds.ttl);
        let questions = [Question::None; QUESTIONS];
        vec![State { nodes, keep_alives, questions, safe, y_granted: false }.named()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_bad() {
            return;
        }
        actions.push(Action::Tick);
        self.actions_of_x(state, actions);
        actions_of_questions(state, actions);
        for node in 0..NODES {
            self.actions_of(state, node, actions);
            for other in (0..NODES).filter(|other| *other != node) {
                self.exchanges(state, node, other, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Tick => state.tick(self.bounds.ttl),
            Action::Send => state.send(),
            Action::SendAgain { which } => {
                state.keep_alives[which] = state.keep_alives[which].sent_again();
            }
            Action::Lose { which } => state.keep_alives[which] = KeepAlive::None,
            Action::Receive { which, at } => state.receive(which, at, self.bounds.ttl),
            Action::Ask { leader, other } => state.ask(leader, other),
            Action::LoseQuestion { which } => state.lose_question(which),
            Action::Accept { which } => self.accept(&mut state, which),
            Action::Count { which } => self.count(&mut state, which),
            Action::Answer { which, leader } => state.answer(which, leader),
            Action::Deliver { which } => self.deliver(&mut state, which),
            Action::FindOverdue { leader } => {
                let node = &mut state.nodes[leader];
                node.due = Some(node.term);
            }
            Action::ProposeExpiry { leader } => state.nodes[leader].propose_expiry(),
            Action::Append { leader, other } => self.append(&mut state, leader, other),
            Action::LearnCommit { leader } => {
                let node = &mut state.nodes[leader];
                node.commit = node.matched;
            }
            Action::Apply { leader } => self.apply(&mut state.nodes[leader]),
            Action::Elect { candidate, voter, term } => {
                self.elect(&mut state, candidate, voter, term);
            }
            Action::Restart { node } => state.stop(node, state.nodes[node].stopped()),
            Action::LoseData { node } => state.stop(node, Node::default()),
        }
        Some(state.named())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(EXCLUSIVE, |_, state: &State| !state.is_bad())]
    }
}

impl World {
    fn lacks(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    fn actions_of_x(&self, state: &State, actions: &mut Vec<Action>) {
        let under_way = state.keep_alives.iter().filter(|one| **one != KeepAlive::None).count();
        if under_way < self.bounds.keep_alives.min(KEEP_ALIVES) {
            actions.push(Action::Send);
        }
        for (which, keep_alive) in state.keep_alives.iter().enumerate() {
            match keep_alive {
                KeepAlive::None => continue,
                KeepAlive::Answered { .. } => actions.push(Action::Deliver { which }),
                KeepAlive::Sent { .. } | KeepAlive::At { .. } => {}
            }
            actions.push(Action::Lose { which });
            if self.lacks(Rule::FreshSeq) {
                actions.push(Action::SendAgain { which });
            }
        }
    }

    /// What a node does by itself.
    fn actions_of(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[at];
        actions.push(Action::Restart { node: at });
        if self.lacks(Rule::DataLossIsFinal) {
            actions.push(Action::LoseData { node: at });
        }
        if !node.leads {
            return;
        }
        for (which, keep_alive) in state.keep_alives.iter().enumerate() {
            if matches!(keep_alive, KeepAlive::Sent { .. }) {
                actions.push(Action::Receive { which, at });
            }
            if self.may_answer(state, *keep_alive, at) {
                actions.push(Action::Answer { which, leader: at });
            }
        }
        let waits = state.keep_alives.iter().any(|one| one.is_at(at));
        if node.deadline == Some(0) && !waits && !node.is_expiring() && self.is_alive(node) {
            actions.push(Action::FindOverdue { leader: at });
        }
        if node.due.is_some() && node.log.len() < self.bounds.log.min(LOG_MAX) {
            actions.push(Action::ProposeExpiry { leader: at });
        }
        if node.commit < node.matched && node.has_own(node.matched) {
            actions.push(Action::LearnCommit { leader: at });
        }
        if node.applied < node.commit {
            actions.push(Action::Apply { leader: at });
        }
    }

    /// What happens between two nodes.
    fn exchanges(&self, state: &State, at: usize, other: usize, actions: &mut Vec<Action>) {
        let (node, peer) = (&state.nodes[at], &state.nodes[other]);
        if node.leads {
            let under_way = state.questions.iter().filter(|one| **one != Question::None).count();
            if under_way < self.bounds.questions.min(QUESTIONS) {
                actions.push(Action::Ask { leader: at, other });
            }
            actions.push(Action::Append { leader: at, other });
        }
        let room = node.log.len() < self.bounds.log.min(LOG_MAX);
        if node.leads || !room || node.log.compare(&peer.log).is_lt() {
            return;
        }
        for term in node.term + 1..=self.bounds.terms {
            if peer.term < term || (peer.term == term && !peer.voted) {
                actions.push(Action::Elect { candidate: at, voter: other, term });
            }
        }
    }

    /// §5.1 and §5.2: when a keepalive is acknowledged.
    fn may_answer(&self, state: &State, keep_alive: KeepAlive, at: usize) -> bool {
        let KeepAlive::At { node: holder, confirmed, .. } = keep_alive else { return false };
        let node = &state.nodes[at];
        let heard_before = node.matched > 0;
        let confirmed = confirmed
            || self.lacks(Rule::QuorumRound)
            || (self.lacks(Rule::RoundAfterReceipt) && heard_before);
        let serves = node.has_own(node.applied)
            || self.lacks(Rule::OwnEntryCommitted)
            || (self.lacks(Rule::OwnEntryApplied) && node.has_own(node.commit));
        let expiring = node.is_expiring() && !self.lacks(Rule::NoAckDuringExpiry);
        holder == at && confirmed && serves && self.is_alive(node) && !expiring
    }

    fn is_effective(&self, entry: Entry) -> bool {
        entry.expires() && (entry.heard_in == entry.term || self.lacks(Rule::TenureCheck))
    }

    /// Whether X's session is alive in what the node has applied.
    fn is_alive(&self, node: &Node) -> bool {
        !node.log.upto(node.applied).iter().any(|entry| self.is_effective(*entry))
    }

    /// Two nodes hear of each other's terms; says whether the leader was accepted.
    fn meet(&self, state: &mut State, leader: usize, other: usize) -> bool {
        let keeps = self.lacks(Rule::NoOldDeadlines);
        let (ours, theirs) = (state.nodes[leader].term, state.nodes[other].term);
        if theirs > ours {
            state.nodes[leader].enter(theirs, keeps);
            state.forget_keep_alive(leader);
            return false;
        }
        if theirs < ours {
            state.nodes[other].enter(ours, keeps);
            state.forget_keep_alive(other);
        } else if state.nodes[other].leads {
            // Two leaders of one term: only where a node voted twice.
            state.nodes[other].follow(keeps);
            state.forget_keep_alive(other);
        }
        true
    }

    /// The other one accepts the leader's vote, unless it has heard of a later term; then the
    /// question is as good as lost.
    fn accept(&self, state: &mut State, which: usize) {
        let Question::Asked { leader, other } = state.questions[which] else { return };
        if state.nodes[other].term > state.nodes[leader].term || !self.meet(state, leader, other) {
            return state.lose_question(which);
        }
        state.questions[which] = Question::Accepted { leader };
    }

    /// The leader reads an answer. It confirms what had come in before its question was sent (§5.1).
    fn count(&self, state: &mut State, which: usize) {
        let Question::Accepted { leader } = state.questions[which] else { return };
        let any = self.lacks(Rule::AnswerToThisRound);
        for keep_alive in &mut state.keep_alives {
            if let KeepAlive::At { node, confirmed, asked, .. } = keep_alive {
                *confirmed |= *node == leader && (any || *asked & bit(which) != 0);
            }
        }
        state.lose_question(which);
    }

    /// The other one has the leader's log now: with that, an entry of the leader's own term and all
    /// before it are committed.
    fn append(&self, state: &mut State, leader: usize, other: usize) {
        if !self.meet(state, leader, other) {
            return;
        }
        let log = state.nodes[leader].log;
        state.nodes[other].log = log;
        let node = &mut state.nodes[leader];
        node.matched = node.matched.max(u8::try_from(log.len()).unwrap_or(u8::MAX));
        if log.last_term() == node.term {
            state.y_granted |= log.all().iter().any(|entry| self.is_effective(*entry));
        }
    }

    /// §5.3: the first entry of the tenure gives X a full TTL.
    fn apply(&self, node: &mut Node) {
        let first = !node.has_own(node.applied) && node.has_own(node.commit);
        node.applied = node.commit;
        if first {
            node.deadline = Some(match node.deadline {
                Some(old) if self.lacks(Rule::NoOldDeadlines) => old,
                _ if self.lacks(Rule::FullTtl) => 0,
                _ => self.bounds.ttl,
            });
        }
    }

    fn elect(&self, state: &mut State, candidate: usize, voter: usize, term: u8) {
        let keeps = self.lacks(Rule::NoOldDeadlines);
        for node in [candidate, voter] {
            state.nodes[node].enter(term, keeps);
            state.nodes[node].voted = true;
            state.forget_keep_alive(node);
        }
        let leader = &mut state.nodes[candidate];
        leader.leads = true;
        leader.log.push(Entry { term, heard_in: 0 });
    }

    fn deliver(&self, state: &mut State, which: usize) {
        if let KeepAlive::Answered { age } = state.keep_alives[which] {
            let age = if self.lacks(Rule::SafeFromSendTime) { 0 } else { age };
            state.safe = state.safe.max(self.bounds.ttl.saturating_sub(age));
        }
        state.keep_alives[which] = KeepAlive::None;
    }
}

impl Node {
    fn propose_expiry(&mut self) {
        if let Some(heard_in) = self.due.take() {
            self.log.push(Entry { term: self.term, heard_in });
        }
    }
}

impl KeepAlive {
    fn is_at(self, at: usize) -> bool {
        matches!(self, Self::At { node, .. } if node == at)
    }

    /// Time passes; what is as old as a lease can give nothing any more.
    fn older(self, ttl: u8) -> Self {
        match self {
            Self::Sent { age } if age + 1 < ttl => Self::Sent { age: age + 1 },
            Self::At { node, age, lease, confirmed, asked } if age + 1 < ttl => {
                Self::At { node, age: age + 1, lease: lease.saturating_sub(1), confirmed, asked }
            }
            Self::Answered { age } if age + 1 < ttl => Self::Answered { age: age + 1 },
            _ => Self::None,
        }
    }

    /// The same number again: an answer to the first copy counts from the second.
    fn sent_again(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Sent { .. } => Self::Sent { age: 0 },
            Self::At { node, lease, confirmed, asked, .. } => {
                Self::At { node, age: 0, lease, confirmed, asked }
            }
            Self::Answered { .. } => Self::Answered { age: 0 },
        }
    }
}

impl State {
    fn is_bad(&self) -> bool {
        self.y_granted && self.safe > 0
    }

    fn tick(&mut self, ttl: u8) {
        self.safe = self.safe.saturating_sub(1);
        self.keep_alives = self.keep_alives.map(|one| one.older(ttl));
        for node in &mut self.nodes {
            node.deadline = node.deadline.map(|left| left.saturating_sub(1));
        }
    }

    fn send(&mut self) {
        if let Some(room) = self.keep_alives.iter_mut().find(|one| **one == KeepAlive::None) {
            *room = KeepAlive::Sent { age: 0 };
        }
    }

    fn receive(&mut self, which: usize, node: usize, ttl: u8) {
        if let KeepAlive::Sent { age } = self.keep_alives[which] {
            let (lease, confirmed, asked) = (ttl, false, 0);
            self.keep_alives[which] = KeepAlive::At { node, age, lease, confirmed, asked };
        }
    }

    fn answer(&mut self, which: usize, leader: usize) {
        if let KeepAlive::At { age, lease, .. } = self.keep_alives[which] {
            let deadline = &mut self.nodes[leader].deadline;
            *deadline = Some(deadline.unwrap_or(0).max(lease));
            self.keep_alives[which] = KeepAlive::Answered { age };
        }
    }

    fn stop(&mut self, node: usize, left: Node) {
        self.nodes[node] = left;
        self.forget_keep_alive(node);
    }

    /// The leader asks: what has come in by now waits for the answer.
    fn ask(&mut self, leader: usize, other: usize) {
        let Some(which) = self.questions.iter().position(|one| *one == Question::None) else {
            return;
        };
        self.questions[which] = Question::Asked { leader, other };
        for keep_alive in &mut self.keep_alives {
            if let KeepAlive::At { node, asked, .. } = keep_alive
                && *node == leader
            {
                *asked |= bit(which);
            }
        }
    }

    fn lose_question(&mut self, which: usize) {
        self.questions[which] = Question::None;
        for keep_alive in &mut self.keep_alives {
            if let KeepAlive::At { asked, .. } = keep_alive {
                *asked &= !bit(which);
            }
        }
    }

    /// What a node had in memory of keepalives is gone, and nobody waits for answers to its
    /// questions.
    fn forget_keep_alive(&mut self, node: usize) {
        for one in &mut self.keep_alives {
            if one.is_at(node) {
                *one = KeepAlive::None;
            }
        }
        for which in 0..QUESTIONS {
            if self.questions[which].leader() == Some(node) {
                self.lose_question(which);
            }
        }
    }

    /// Of states that differ in the names of nodes, keepalives and questions only, one: all in order.
    fn named(mut self) -> Self {
        let mut order = [0, 1, 2];
        let has = |node| self.keep_alives.map(|one| one.is_at(node));
        let asks = |node| self.questions.map(|one| one.part_of(node));
        order.sort_by_key(|node| (self.nodes[*node], has(*node), asks(*node)));
        self.nodes = order.map(|at| self.nodes[at]);
        let name = |node: usize| order.iter().position(|at| *at == node).unwrap_or(node);
        let mut places = [0, 1];
        self.questions = self.questions.map(|one| one.renamed(name));
        places.sort_by_key(|place| self.questions[*place]);
        self.questions = places.map(|place| self.questions[place]);
        for one in &mut self.keep_alives {
            if let KeepAlive::At { node, asked, .. } = one {
                *node = name(*node);
                let before = *asked;
                let now = |new: usize| (before & bit(places[new]) != 0).then_some(bit(new));
                *asked = (0..QUESTIONS).filter_map(now).sum();
            }
        }
        self.keep_alives.sort_unstable();
        self
    }
}

impl Question {
    fn leader(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Asked { leader, .. } | Self::Accepted { leader } => Some(leader),
        }
    }

    /// What a node has to do with it.
    fn part_of(self, node: usize) -> u8 {
        match self {
            Self::Asked { leader, .. } | Self::Accepted { leader } if leader == node => 2,
            Self::Asked { other, .. } if other == node => 1,
            _ => 0,
        }
    }

    fn renamed(self, name: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::None => Self::None,
            Self::Asked { leader, other } => {
                Self::Asked { leader: name(leader), other: name(other) }
            }
            Self::Accepted { leader } => Self::Accepted { leader: name(leader) },
        }
    }
}

fn bit(question: usize) -> u8 {
    1 << question
}

/// A question arrives, or its answer, or neither.
fn actions_of_questions(state: &State, actions: &mut Vec<Action>) {
    for (which, question) in state.questions.iter().enumerate() {
        match question {
            Question::None => continue,
            Question::Asked { .. } => actions.push(Action::Accept { which }),
            Question::Accepted { .. } => actions.push(Action::Count { which }),
        }
        actions.push(Action::LoseQuestion { which });
    }
}
