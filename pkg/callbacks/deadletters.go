package callbacks

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// UnreadTopic is a topic whose replies cannot be read now.
type UnreadTopic struct {
	Topic string
	// Reason is why, in the bus's words, empty if it is not known.
	Reason string
}

// DeadLetter is a reply that the consumer of the reply topics could not handle.
type DeadLetter struct {
	// ID identifies it while it exists.
	ID        string
	Lane      int
	Topic     string
	MessageID string
	// Reason and Description say why it is here: a problem's code, or the bus's words.
	Reason, Description string
	// SentAt is when the topic got it.
	SentAt time.Time
	Body   []byte
}

// DeadLetterOutcome is the outcome of handling a dead letter.
type DeadLetterOutcome string

// The outcomes. After any but DeadLetterKept, the dead letter no longer exists.
const (
	DeadLetterApplied   DeadLetterOutcome = "applied"   // replayed: committed to the ledger
	DeadLetterDuplicate DeadLetterOutcome = "duplicate" // replayed: the ledger had it already
	DeadLetterRefused   DeadLetterOutcome = "refused"   // replayed: stale, contradictory or too late, as it would be over HTTP
	DeadLetterPurged    DeadLetterOutcome = "purged"    // deleted unread
	DeadLetterKept      DeadLetterOutcome = "kept"      // it still exists, or was not reached, for the given cause
	DeadLetterAbsent    DeadLetterOutcome = "absent"    // it does not exist, or another process is handling it
)

// HandledDeadLetter is a dead letter with its outcome.
type HandledDeadLetter struct {
	ID      string
	Outcome DeadLetterOutcome
	// Cause is why it was refused or kept.
	Cause *apierror.Error
}

// MaxDeadLetters is the most dead letters that are handled at once.
const MaxDeadLetters = 100

// DeadLetters is the way out of the reply topics' dead-letter queues. Its errors are
// [*apierror.Error]s with the code bus_unavailable, or invalid_envelope for a malformed id.
type DeadLetters interface {
	// List returns at most that many dead letters after an id, by lane and age, and the
	// id to continue after, empty at the end. It leaves them as they are.
	List(ctx context.Context, limit int, after string) (page []DeadLetter, next string, err error)
	// Replay applies dead letters as if they came now, and deletes those that the ledger
	// has or will never take. Repeating it is safe, as callbacks are idempotent. Without
	// ids it takes the first [MaxDeadLetters]; more says that there are others.
	Replay(ctx context.Context, ids []string) (handled []HandledDeadLetter, more bool, err error)
	// Purge deletes dead letters, chosen as for Replay.
	Purge(ctx context.Context, ids []string) (handled []HandledDeadLetter, more bool, err error)
}

// Survey is what a count of dead letters found.
type Survey struct {
	// Count is how many there are, at most 500 of each topic.
	Count int
	// Oldest is when the oldest of them was sent; zero if there is none.
	Oldest time.Time
}
