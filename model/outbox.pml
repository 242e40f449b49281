/*
 * The outbox, lease and schedule protocol of one job, small enough to be checked
 * in full. docs/understand/model.md maps each step to the code and says what is left out.
 *
 *   relay     publishes the directive of the attempt in hand, then marks it SENT
 *   worker    reports ACK, SUCCEEDED or FAILED_RETRY of any attempt that was ever
 *             published: any number of times, late, in any order, or never
 *   sweeper   fires any schedule entry at any time: time passes as it likes
 *
 * Each change is: load and write the entry that is to stand for the job (pre),
 * commit under the version that was loaded, clean up (post). Between any two of
 * these the process may die, CRASHES times in all, and what it held is forgotten.
 *
 * A decision is a function of what was loaded, and a commit comes through only if
 * that is still so; so the model decides in the commit.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef STEPS
#define STEPS 1
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef RAISES
#define RAISES 0         /* early entries whose grace may pass */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define NO_CAS            1   /* a commit does not compare versions */
#define MARK_FIRST        2   /* mark SENT, then publish */
#define ENTRY_AFTER       3   /* the entry is written behind the commit */
#define DELETE_EARLY      4   /* an entry is deleted whose change may still come */
#define NO_LEASE          5   /* a report counts whatever its lease */
#define SAME_LEASE        6   /* a new attempt has the lease of the one before */
#define NO_END_ENTRY      7   /* no entry stands for what follows the end */
#define ENTRY_BEFORE_WORK 8   /* at the end the entry goes first, then the slot */
#define NO_NEW_ENTRY      9   /* a retry is planned without an entry of its own */
#define REWRITE_TERMINAL 10   /* a late report changes a job that has ended */
#define HOT_ONLY         11   /* the relay knows only what it was handed, in memory */
#define NO_DEADLINES     12   /* nobody acts when a worker is silent */
#define RAISE_BLIND      13   /* after raising rev an entry is deleted without another look */

#define ENTRIES 4             /* numbers of entries; one is used again when nobody knows it */
#define NONE    ENTRIES       /* no entry */
#define FULL    (ENTRIES + 1) /* no number is free */
#define ALL     (STEPS * ATTEMPTS)
#define CURRENT (step * ATTEMPTS + attempt)
#define RELAY   0
#define WORKER  1
#define SWEEPER 2

mtype = { DISPATCHING, AWAITING_ACK, IN_PROGRESS, FAILED_RETRY };   /* the step */
mtype = { MARK, ACK, SUCCEEDED, RETRY, DEADLINE, RAISE };           /* what happens to it */

/* The job's partition: one commit point. */
byte  step, attempt;
mtype state = DISPATCHING;
bool  sent, ended;
byte  head;                       /* the entry that stands for the job */
bool  fresh[3];                   /* by actor: nothing was committed since it loaded */

/* Other partitions. */
bool  present[ENTRIES + 1];         /* schedule entries */
bool  early[ENTRIES + 1];           /* the change that the entry was written for may still come */
bool  slot = true;                /* the in-flight slot */

/* The world. */
bool  published[ALL];
bool  hot = true;                 /* the relay was handed the directive, in memory */
byte  crashes = CRASHES;
byte  raises = RAISES;

/* Only for the check. */
byte  advanced[STEPS];
byte  held[3] = NONE;                   /* the entry that each actor may still touch, NONE for none */
byte  held2[3] = NONE;

#define KNOWN(id) (present[id] || head == id || held[0] == id || held[1] == id || held[2] == id || \
	held2[0] == id || held2[1] == id || held2[2] == id)
/* A pass handles every entry that is due, so nothing that stands for nothing stays
 * for ever. Only what must happen in the end needs this (-DPASSES). */
#define STRAY(id) (present[id] && !early[id] && head != id)
#ifdef PASSES
#define TIDY (STRAY(0) || STRAY(1) || STRAY(2) || STRAY(3))
#else
#define TIDY false
#endif
#define DUE(id)   (present[id] && (!early[id] || MUTANT == DELETE_EARLY) && (head != id || !TIDY))
#define WORK      (!ended && state == DISPATCHING && !sent)
#define ENDS      ((kind == SUCCEEDED && step == STEPS - 1) || \
	((kind == RETRY || (kind == DEADLINE && state != FAILED_RETRY)) && attempt == ATTEMPTS - 1))
#define LEASE(a)  (MUTANT == SAME_LEASE -> (a) / ATTEMPTS : (a))

inline forget(me) {
	held[me] = NONE; held2[me] = NONE; fresh[me] = false;
	old = 0; new = 0; which = 0; kind = 0; last = false
}

inline discard(id) { present[id] = false; early[id] = false }

inline mayDie(me) {
	if
	:: d_step { crashes > 0 -> crashes--; hot = false; forget(me) }; goto again
	:: skip
	fi
}

/* The entry that is to stand for the job: the one that does, unless it has fired,
 * or the change ends the job. It is written at once with the load: an entry whose
 * load is stale by then stands for nothing, as if it were written later. */
inline load(me, fired) {
	fresh[me] = true;
	last = ENDS;
	new = (last && MUTANT == NO_END_ENTRY -> NONE : head);
	if
	:: (fired && !last && MUTANT != NO_NEW_ENTRY) || (last && MUTANT != NO_END_ENTRY) ->
		new = 0;
		do
		:: new < ENTRIES && KNOWN(new) -> new++
		:: else -> break
		od;
		if
		:: new < ENTRIES ->
			held2[me] = new;
			present[new] = (MUTANT != ENTRY_AFTER);
			early[new] = (MUTANT != ENTRY_AFTER)
		:: else -> new = FULL
		fi
	:: else -> skip
	fi
}

/* What a change does to the job. */
inline decide() {
	if
	:: kind == RAISE          /* rev alone: no commit of the old one can come any more */
	:: kind == MARK -> state = AWAITING_ACK; sent = true
	:: kind == ACK -> state = IN_PROGRESS; sent = true
	:: kind == SUCCEEDED ->
		advanced[step]++;
		if
		:: step == STEPS - 1 -> ended = true
		:: else -> step++; attempt = 0; state = DISPATCHING; sent = false; hot = true
		fi
	:: kind == DEADLINE && state == FAILED_RETRY ->
		attempt++; state = DISPATCHING; sent = false; hot = true
	:: kind == RETRY || (kind == DEADLINE && state != FAILED_RETRY) ->
		sent = true;
		if
		:: attempt < ATTEMPTS - 1 -> state = FAILED_RETRY
		:: else -> ended = true
		fi
	fi
}

/* Commit and post, after a load. */
inline change(me) {
	if
	:: d_step { new == FULL -> forget(me) }; goto again   /* the sweeper tidies up first */
	:: new != FULL -> mayDie(me)
	fi;
	if
	:: d_step {
		(fresh[me] || MUTANT == NO_CAS) && (!ended || MUTANT == REWRITE_TERMINAL) ->
		assert(!ended);                                  /* nothing terminal changes */
		assert(kind == DEADLINE || kind == RAISE || which == CURRENT);    /* fenced */
		assert(kind != MARK || published[which]);        /* SENT means published */
		fresh[0] = false; fresh[1] = false; fresh[2] = false;
		early[0] = false; early[1] = false; early[2] = false; early[3] = false;
		old = head; held[me] = head;
		decide();
		assert(advanced[0] <= 1 && advanced[STEPS - 1] <= 1);   /* applied once */
		head = new
	   }
	:: d_step { !((fresh[me] || MUTANT == NO_CAS) && (!ended || MUTANT == REWRITE_TERMINAL)) -> forget(me) };
		goto again
	fi;
	mayDie(me);
	if
	:: MUTANT == ENTRY_AFTER -> present[new] = true
	:: else -> skip
	fi;
	if
	:: last && MUTANT == ENTRY_BEFORE_WORK ->
		d_step { discard(old); discard(new) };
		mayDie(me);
		slot = false
	:: last && MUTANT != ENTRY_BEFORE_WORK ->
		slot = false;
		mayDie(me);
		d_step { discard(old); discard(new) }
	:: !last && old != new -> d_step { discard(old) }
	:: !last && old == new && MUTANT == NO_NEW_ENTRY && me == SWEEPER -> d_step { discard(old) }
	:: else -> skip
	fi;
	d_step { forget(me) }
}

#define LOCALS byte old, new, which; mtype kind; bool last

/* The relay finds work in its hands, or through the entry that stands for the job. */
proctype relay() {
	LOCALS;
again:
	atomic { WORK && (hot || (present[head] && MUTANT != HOT_ONLY)) -> which = CURRENT; hot = false }
	if
	:: MUTANT != MARK_FIRST -> published[which] = true; mayDie(RELAY)
	:: else -> skip
	fi;
	if
	:: d_step { WORK && which == CURRENT -> kind = MARK; load(RELAY, false) }
	:: d_step { !(WORK && which == CURRENT) -> forget(RELAY) }; goto again
	fi;
	change(RELAY);
	if
	:: MUTANT == MARK_FIRST -> published[which] = true
	:: else -> skip
	fi;
	goto again
}

/* A worker, or a copy of what it once said. */
proctype worker() {
	LOCALS;
again:
	atomic {
		if
		:: published[0] -> which = 0
#if ALL > 1
		:: published[1] -> which = 1
#endif
#if ALL > 2
		:: published[2] -> which = 2
		:: published[3] -> which = 3
#endif
		fi;
		if
		:: kind = ACK
		:: kind = SUCCEEDED
		:: kind = RETRY
		fi;
		if
		:: (ended && MUTANT != REWRITE_TERMINAL) || (MUTANT != NO_LEASE && LEASE(which) != LEASE(CURRENT)) ||
		   (kind == ACK && (state == IN_PROGRESS || state == FAILED_RETRY)) ||
		   (kind == RETRY && state == FAILED_RETRY) ->
			d_step { forget(WORKER) }; goto again     /* stale, or a repeat: nothing changes */
		:: else -> d_step { load(WORKER, false) }
		fi
	}
	change(WORKER);
	goto again
}

#define OVERDUE(id) (raises > 0 && !ended && present[id] && early[id])

/* The sweeper fires any entry, at any time. One whose change may still come is
 * left alone; past a grace rev is raised, and then the entry is judged like any
 * other: its change may have landed after all. */
proctype sweeper() {
	LOCALS;
	byte entry;
again:
	atomic {
		if
		:: DUE(0) -> entry = 0
		:: DUE(1) -> entry = 1
		:: DUE(2) -> entry = 2
		:: DUE(3) -> entry = 3
		:: OVERDUE(0) -> entry = 0; kind = RAISE
		:: OVERDUE(1) -> entry = 1; kind = RAISE
		:: OVERDUE(2) -> entry = 2; kind = RAISE
		:: OVERDUE(3) -> entry = 3; kind = RAISE
		fi;
		held[SWEEPER] = entry;
		if
		:: kind == RAISE && MUTANT == RAISE_BLIND -> raises--; goto blind
		:: kind == RAISE && MUTANT != RAISE_BLIND -> d_step { raises--; entry = 0; held[SWEEPER] = NONE; load(SWEEPER, false) }
		:: kind != RAISE && entry != head -> goto stale
		:: kind != RAISE && entry == head && ended -> goto finish
		:: kind != RAISE && entry == head && (WORK || (!ended && MUTANT == NO_DEADLINES)) -> d_step { entry = 0; forget(SWEEPER) }; goto again   /* the relay's */
		:: kind != RAISE && entry == head && !ended && !WORK && MUTANT != NO_DEADLINES -> d_step { entry = 0; kind = DEADLINE; load(SWEEPER, true) }
		fi
	}
	change(SWEEPER);
	goto again;
stale:                                /* it stands for nothing */
	atomic { discard(entry); entry = 0; forget(SWEEPER) };
	goto again;
blind:                                /* raised behind whatever was committed meanwhile */
	atomic {
		fresh[0] = false; fresh[1] = false; fresh[2] = false;
		early[0] = false; early[1] = false; early[2] = false; early[3] = false;
		discard(entry); entry = 0; forget(SWEEPER)
	};
	goto again;
finish:                               /* what follows the end, once more */
	slot = false;
	d_step { discard(entry); entry = 0; forget(SWEEPER) };
	goto again
}

/* Whoever looks at the schedule finds a job that is not done. */
#define FOUND (present[head] || (ended && !slot))

init {
	atomic { present[0] = true; run relay(); run worker(); run sweeper() };
	assert(FOUND)                     /* at any moment, as nothing hurries this process */
}

/* The job ends, and nothing that it held is left. */
ltl ends { <> (ended && !slot) }
