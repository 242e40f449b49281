/*
 * One limit, whose tokens processes lease and spend, small enough to be checked in full.
 * docs/understand/model.md maps each step to the code and says what is left out.
 *
 * Time goes on in ticks, while any process stands still for as long as it likes: it waits for
 * the store, or is suspended. The clock of each process is ahead of the true time by a fixed
 * number of ticks, 0 to SKEW. LATES writes time out: they arrive later or never, and their
 * process does not use the tokens. CRASHES processes forget their tokens.
 *
 * The row is the tokens that were granted in each tick, by the clock of the process that wrote,
 * and a version. A bucket of the code is a tick here.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef COUNT
#define COUNT 2          /* starts that are allowed in WINDOW ticks */
#endif
#ifndef WINDOW
#define WINDOW 2
#endif
#ifndef LIFE
#define LIFE 1           /* tokens can be used in the tick of their lease and in so many after it */
#endif
#ifndef SKEW
#define SKEW 1
#endif
#ifndef END
#define END 6            /* the last tick */
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

#define SPAN_WITHOUT_LIFE 1   /* a grant counts for the window and the skew alone */
#define SPAN_WITHOUT_SKEW 2   /* a grant counts as if all clocks were equal */
#define LIFE_AFTER_WRITE  3   /* tokens live from the moment at which their lease is known written */
#define WRITE_BLIND       4   /* a lease is written whatever the row's version */
#define USE_UNCHECKED     5   /* a start is sent without a look at the clock */
#define USE_UNKNOWN       6   /* tokens of a lease with an unknown outcome are used, and leased again */

#if MUTANT == SPAN_WITHOUT_LIFE
#define SPAN (WINDOW + SKEW)
#elif MUTANT == SPAN_WITHOUT_SKEW
#define SPAN (WINDOW + LIFE)
#else
#define SPAN (WINDOW + LIFE + SKEW)
#endif

#define TICKS (END + SKEW + 1)

byte now;                     /* the true time */
byte granted[TICKS];          /* the row */
byte version;
byte started[TICKS];          /* starts, by the true time at which they were sent */
byte lates = LATES, crashes = CRASHES;

bool late;                    /* a write that may still arrive */
byte lateVersion, lateTick, lateN;

inline write(at, n) {
	granted[at] = granted[at] + n;
	version++
}

/* invariant: the starts of any WINDOW ticks are at most COUNT */
inline start() {
	started[now] = started[now] + 1;
	i = 0; sum = 0;
	do
	:: i > now -> break
	:: i <= now && i + WINDOW > now -> sum = sum + started[i]; i++
	:: else -> i++
	od;
	assert(sum <= COUNT);
	i = 0; sum = 0
}

proctype process(byte ahead) {
	byte i, sum, n, tokens, t0, seen;
#define CLOCK (now + ahead)
end:	do
	:: atomic {               /* compute a lease from the row as it is read */
		tokens == 0 && n == 0 ->
		t0 = CLOCK; seen = version; i = 0; sum = 0;
		do
		:: i == TICKS -> break
		:: i < TICKS && i + SPAN > t0 -> sum = sum + granted[i]; i++
		:: else -> i++
		od;
		i = 0;
		if
		:: sum < COUNT -> n = 1
		:: sum + 1 < COUNT -> n = COUNT - sum
		:: else
		fi;
		sum = 0
	}
	:: atomic {               /* write it under the version, at any later moment */
		n > 0 ->
		if
		:: version == seen || MUTANT == WRITE_BLIND ->
			write(t0, n); tokens = n;
			if
			:: MUTANT == LIFE_AFTER_WRITE -> t0 = CLOCK
			:: else
			fi
		:: else                /* a conflict */
		fi;
		n = 0; seen = 0
	}
	:: atomic {               /* or the write times out */
		n > 0 && lates > 0 && !late ->
		lates--; late = true; lateVersion = seen; lateTick = t0; lateN = n;
		if
		:: MUTANT == USE_UNKNOWN -> tokens = n
		:: else
		fi;
		n = 0; seen = 0
	}
	:: atomic {               /* send a start */
		tokens > 0 && (CLOCK <= t0 + LIFE || MUTANT == USE_UNCHECKED) ->
		tokens--; start()
	}
	:: atomic { tokens > 0 && CLOCK > t0 + LIFE -> tokens = 0 }
	:: atomic { crashes > 0 && (tokens > 0 || n > 0) -> crashes--; tokens = 0; n = 0; seen = 0 }
	od
}

active proctype world() {
end:	do
	:: atomic { now < END -> now++ }
	:: atomic {
		late ->
		if
		:: version == lateVersion -> write(lateTick, lateN)
		:: else
		fi;
		late = false; lateVersion = 0; lateTick = 0; lateN = 0
	}
	:: atomic { late -> late = false; lateVersion = 0; lateTick = 0; lateN = 0 }
	od
}

init {
	atomic {
		run process(0);
		run process(SKEW);
#if PROCESSES > 2
		if
		:: run process(0)
		:: run process(SKEW)
		fi
#endif
	}
}
