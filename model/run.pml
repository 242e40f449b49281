/*
 * The run slots of one limit of what runs at once, and the items that claims hold under it, small
 * enough to be checked in full, for a store that is not atomic. docs/understand/model.md maps each
 * step to the code and says what is left out.
 *
 * A claim inserts the row of a slot for the rev that its commit will make, then commits. What ends
 * the hold commits, then deletes the row. A claim that has to try another rev first replaces its
 * row. Who finds no free slot judges the rows. Each process does any of this next, and stands still
 * for as long as it likes. CRASHES processes forget what they did. LATES writes of a claim time out:
 * they arrive later or never, and the claim is given up.
 *
 * The model has no clock: the grace of an early row may be over at any moment. All holds of an item
 * have the same attempt, so that only the rev and the versions of rows tell them apart.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef ITEMS
#define ITEMS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef REVS
#define REVS 5           /* no change is planned for an item that has this rev */
#endif
#ifndef LATES
#define LATES 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define ROW_AFTER     1  /* a claim inserts its row after its commit */
#define SAME_ROW      2  /* a claim tries another rev with the row of the rev before */
#define ADOPT         3  /* a claim takes a row that is there if it names its item */
#define FREE_FIRST    4  /* the row is deleted before the commit that ends the hold */
#define FREE_BLIND    5  /* after that commit the row is deleted whatever its version */
#define JUDGE_BLIND   6  /* a void row is deleted whatever its version */
#define DELETE_EARLY  7  /* an early row is deleted as if it were void */
#define RAISE_BLIND   8  /* after raising rev an early row is deleted without another look */

/* Each job has one item, whose state changes with the job's rev alone. */
byte rev[ITEMS] = 1;
bool held[ITEMS];
byte names[ITEMS];               /* the slot that a held item names */

/* The rows of the limit. A version is never used again. */
bool row[SLOTS];
byte owner[SLOTS], rowRev[SLOTS], version[SLOTS];

byte lates = LATES, crashes = CRASHES;
bool lateRow, lateCommit;        /* writes that may still arrive: one at a time */
byte lateItem, lateSlot, lateRev;

/* invariant: a held item's slot has a row of the item. So at most SLOTS items are held. */
inline check() {
	c = 0;
	do
	:: c == ITEMS -> break
	:: c < ITEMS -> assert(!held[c] || (row[names[c]] && owner[names[c]] == c)); c++
	od;
	c = 0
}

inline putRow(slot, item, at) {
	row[slot] = true; owner[slot] = item; rowRev[slot] = at; version[slot] = version[slot] + 1
}

inline deleteRow(slot) {
	row[slot] = false; owner[slot] = 0; rowRev[slot] = 0; check()
}

inline hold(item, slot) {
	rev[item] = rev[item] + 1; held[item] = true; names[item] = slot;
	if
	:: MUTANT != ROW_AFTER -> check()
	:: else
	fi
}

#define CRASH atomic { crashes > 0 -> crashes--; goto idle }
#define MINE  (row[k] && version[k] == mine)

proctype process() {
	byte i, k, seen, mine, at, c;

idle:	atomic { i = 0; k = 0; seen = 0; mine = 0; at = 0 }
end:	do
	:: i + 1 < ITEMS -> i++
	:: k + 1 < SLOTS -> k++
	:: atomic { !held[i] && rev[i] < REVS -> seen = rev[i]; goto take }
	:: atomic { held[i] && rev[i] < REVS -> seen = rev[i]; k = names[i]; goto finish }
	:: atomic { row[k] -> i = owner[k]; at = rowRev[k]; mine = version[k]; goto judge }
	od;

	/* The claim. */
take:	if
	:: MUTANT == ROW_AFTER -> goto commit
	:: atomic { MUTANT != ROW_AFTER && !row[k] -> putRow(k, i, seen + 1); mine = version[k] }
	:: atomic { row[k] && owner[k] == i && MUTANT == ADOPT -> mine = version[k] }
	:: atomic { row[k] -> goto idle }
	:: atomic {
		lates > 0 && !lateRow && !lateCommit ->
		lates--; lateRow = true; lateItem = i; lateSlot = k; lateRev = seen + 1;
		goto idle
	}
	:: CRASH
	fi;
commit:	if
	:: atomic { rev[i] == seen && MUTANT != ROW_AFTER -> hold(i, k); goto idle }
	:: atomic { rev[i] == seen && MUTANT == ROW_AFTER -> hold(i, k) }
	:: atomic { rev[i] != seen && !held[i] && rev[i] < REVS -> seen = rev[i]; goto again }
	:: atomic { rev[i] != seen && (held[i] || rev[i] >= REVS) -> goto drop }
	:: atomic {
		lates > 0 && !lateRow && !lateCommit ->
		lates--; lateCommit = true; lateItem = i; lateSlot = k; lateRev = seen + 1;
		goto idle
	}
	:: CRASH
	fi;
	atomic {                  /* ROW_AFTER alone */
		if
		:: !row[k] -> putRow(k, i, seen + 1)
		:: else
		fi;
		check();
		goto idle
	}
again:	if
	:: MUTANT == SAME_ROW || MUTANT == ROW_AFTER -> goto commit
	:: atomic { MUTANT != SAME_ROW && MINE -> putRow(k, i, seen + 1); mine = version[k]; goto commit }
	:: atomic { MUTANT != SAME_ROW && MUTANT != ROW_AFTER && !MINE -> goto idle }
	:: CRASH
	fi;
drop:	atomic {
		if
		:: MINE -> deleteRow(k)
		:: else
		fi;
		goto idle
	}

	/* What ends the hold reads the row before its commit. */
finish:	atomic {
		if
		:: row[k] && owner[k] == i -> mine = version[k]
		:: else
		fi
	}
	if
	:: atomic { MUTANT == FREE_FIRST && MINE -> deleteRow(k) }
	:: MUTANT != FREE_FIRST || !MINE
	fi;
	if
	:: atomic { rev[i] == seen -> rev[i] = rev[i] + 1; held[i] = false; names[i] = 0 }
	:: rev[i] != seen -> goto idle
	:: CRASH
	fi;
	if
	:: atomic { row[k] && (MINE || MUTANT == FREE_BLIND) -> deleteRow(k); goto idle }
	:: !MINE -> goto idle
	:: CRASH
	fi;

	/* The judge has read the row. */
judge:	atomic {
		if
		:: rev[i] < at && MUTANT != DELETE_EARLY -> seen = rev[i]
		:: rev[i] >= at && held[i] && names[i] == k -> goto idle
		:: else -> goto void
		fi
	}
	if
	:: atomic { rev[i] == seen -> rev[i] = rev[i] + 1 }  /* no claim of rev 'at' lands any more */
	:: rev[i] != seen
	:: CRASH
	fi;
	if
	:: MUTANT != RAISE_BLIND -> goto judge
	:: MUTANT == RAISE_BLIND
	fi;
void:	if
	:: atomic { row[k] && (MINE || MUTANT == JUDGE_BLIND) -> deleteRow(k); goto idle }
	:: !MINE -> goto idle
	:: CRASH
	fi
}

active proctype late() {
	byte c;
end:	do
	:: atomic {
		lateRow ->
		if
		:: !row[lateSlot] -> putRow(lateSlot, lateItem, lateRev)
		:: else
		fi;
		lateRow = false
	}
	:: atomic { lateRow -> lateRow = false }
	:: atomic {
		lateCommit ->
		if
		:: rev[lateItem] + 1 == lateRev -> hold(lateItem, lateSlot)
		:: else
		fi;
		lateCommit = false
	}
	:: atomic { lateCommit -> lateCommit = false }
	od
}

init {
	atomic {
		run process();
		run process();
#if PROCESSES > 2
		run process()
#endif
	}
}
