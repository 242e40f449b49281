package tablestore

import (
	"context"
	"errors"
	"fmt"
)

// Key addresses one row. Partition and Row hold only characters that
// [Escape] and [Join] produce, so that every driver can store them.
type Key struct {
	Table     string
	Partition string
	Row       string
}

// String returns the key as table/partition/row, for messages.
func (k Key) String() string { return k.Table + "/" + k.Partition + "/" + k.Row }

// ETag is the opaque version of a stored row. Two writes of a row never give it
// the same ETag, even if the content is the same. The zero value names no
// version.
type ETag string

// Row is one stored row.
type Row struct {
	Key        Key
	ETag       ETag
	Properties Properties
}

// Verb is what an [Op] does to its row, and under which precondition.
type Verb uint8

// The verbs. A state row is written only with Insert, Replace and Delete; Put
// and Discard are for hints, which may be lost or repeated.
const (
	// Insert writes a row that must be absent.
	Insert Verb = iota + 1
	// Replace writes all properties of a row that must have the op's ETag.
	Replace
	// Delete removes a row that must have the op's ETag.
	Delete
	// Put writes a row whether or not it exists.
	Put
	// Discard removes a row if it exists. In a batch with other ops it may
	// leave a row that is inserted while the batch is under way.
	Discard
	// Clear removes all rows of the partition. Its key has no row. Only an [AtomicStore]
	// takes it, as the one op of its batch and after all other ops on the partition.
	// It may leave a row that is inserted while it is under way.
	Clear
)

// String returns the verb's name.
func (v Verb) String() string {
	switch v {
	case Insert:
		return "insert"
	case Replace:
		return "replace"
	case Delete:
		return "delete"
	case Put:
		return "put"
	case Discard:
		return "discard"
	case Clear:
		return "clear"
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// writes reports whether the row exists after the verb.
func (v Verb) writes() bool { return v == Insert || v == Replace || v == Put }

// conditional reports whether the verb carries an ETag.
func (v Verb) conditional() bool { return v == Replace || v == Delete }

// Op is one write of a [Batch].
type Op struct {
	Verb       Verb
	Key        Key
	ETag       ETag       // Replace and Delete only.
	Properties Properties // Insert, Replace and Put only.
}

// Batch is a set of writes that are applied all or none: to one table and one
// partition, at most [MaxBatchOps] ops and [MaxBatchBytes], each key once. See
// [Batch.Validate].
type Batch []Op

// Query selects the rows of one partition with From <= Row < To, in ascending
// byte order. An empty To means the end of the partition.
type Query struct {
	Table     string
	Partition string
	From      string
	To        string
	// Limit is the greatest number of rows on one page; 0 leaves it to the
	// store.
	Limit int
	// Continue is the Next of the previous page, empty for the first one.
	Continue string
}

// Page is one part of a query's answer. It may hold no rows although Next is
// set: a reader continues until Next is empty.
type Page struct {
	Rows []Row
	Next string
}

// Store is the table-store port. It has the semantics of Azure Tables: rows by
// key, an ETag per row, range scans within a partition, atomic batches within
// a partition.
//
// All methods may be called concurrently. A store does not keep or change rows
// that are passed in, and returned rows belong to the caller. A read never
// returns a write that a crash could still undo.
type Store interface {
	// Get returns the row, or [ErrNotFound].
	Get(ctx context.Context, key Key) (Row, error)

	// Scan returns one page of the query's rows.
	Scan(ctx context.Context, query Query) (Page, error)

	// Commit applies the batch and returns the ETags in the order of its ops
	// (empty for Delete and Discard). It has three outcomes: nil means that the
	// batch is durably written; [ErrConflict] that a precondition did not hold
	// and nothing was written; [ErrUnknown] that the reply was lost and the
	// batch may have been, or may yet be, applied. [ErrUnavailable] says that
	// the store did not accept the batch now but may later; [ErrInvalid] and
	// [ErrTooLarge] that it never will.
	Commit(ctx context.Context, batch Batch) ([]ETag, error)

	// Close releases the store. No other call may be under way.
	Close() error
}

// reclaimingKey marks the contexts of [Reclaiming].
type reclaimingKey struct{}

// Reclaiming returns a context whose commits free space, so that a store on a nearly
// full disk takes them when it takes no others.
func Reclaiming(ctx context.Context) context.Context {
	return context.WithValue(ctx, reclaimingKey{}, true)
}

// IsReclaiming reports whether the context is one of [Reclaiming].
func IsReclaiming(ctx context.Context) bool { return ctx.Value(reclaimingKey{}) != nil }

// AtomicStore is a store that can also apply several batches, of any tables and
// partitions, in one atomic write. A key may be in several batches: the later
// op sees the earlier one.
type AtomicStore interface {
	Store

	// GetAll returns the rows with these keys, in the order of the keys; a row that is
	// absent is the zero Row. The rows may be of different moments.
	GetAll(ctx context.Context, keys []Key) ([]Row, error)

	// CommitAll applies all batches or none, with the outcomes of Commit. The
	// ETag [Own] names the version that an earlier batch of the call wrote.
	//
	// applied, unless it is nil, is called once with the versions, as soon as writes
	// of this process may name them, and before any of them does or a read returns them,
	// so that the calls for one row come in the order of its versions. A store that
	// keeps the order of its writes on the disk calls it while the write is still on
	// its way there: a write that names the versions becomes durable with this one or
	// after it, so a caller that awaits that one need not await this one first. CommitAll
	// may then still return an error that wraps [ErrUnknown]. applied must be quick, and
	// must not use the store.
	CommitAll(ctx context.Context, batches []Batch, applied func([][]ETag)) ([][]ETag, error)
}

// Walk selects the rows of a whole table after a key, in ascending order of
// partition and row.
type Walk struct {
	Table string
	// Partition and Row are the key of the last row read, both empty for the
	// first page.
	Partition string
	Row       string
	// Limit is the greatest number of rows on one page; 0 leaves it to the
	// store.
	Limit int
}

// Walker is a store that can read whole tables, for audits. It is not for
// serving requests: the cost of a walk grows with the table.
type Walker interface {
	// Walk returns one page of rows, none at the end of the table. A row that
	// exists from the beginning of a walk to its end is returned once. The
	// errors are those of [Store].Scan.
	Walk(ctx context.Context, walk Walk) ([]Row, error)
}

// Notifier is a store whose processes can send hints to each other. A hint may be lost, so
// that a listener also has to look by itself now and then.
type Notifier interface {
	// Notify sends the payload to the processes that listen on the channel, but not to this
	// one. It does not block, and what waits to be sent is sent once.
	Notify(channel, payload string)
	// Listen calls heard for each payload, and with an empty one whenever some may have been
	// lost, until the store is closed. heard must not block, and may come from any goroutine.
	Listen(channel string, heard func(payload string))
}

// Confirmer is a store whose reads may show a commit that a failover then loses.
type Confirmer interface {
	// Confirm returns nil once a failover cannot lose any commit that this process has read,
	// so that a request may be acknowledged which an earlier commit has fulfilled. Else the
	// error wraps [ErrUnavailable].
	Confirm(ctx context.Context) error
}

// First reports whether the walk begins at the table's first row.
func (w Walk) First() bool { return w.Partition == "" }

// After returns the walk's next page, after the last of these rows.
func (w Walk) After(rows []Row) Walk {
	last := rows[len(rows)-1].Key
	w.Partition, w.Row = last.Partition, last.Row
	return w
}

var (
	// ErrNotFound is returned by Get when there is no such row.
	ErrNotFound = errors.New("row not found")

	// ErrConflict is wrapped by the error of a write whose precondition did not
	// hold and which wrote nothing. [ConflictError] names the row.
	ErrConflict = errors.New("conflict")

	// ErrUnknown is returned by a write with unknown outcome: it may have been
	// applied, and a request that is still under way may yet be. Only reading a
	// row of the write can tell.
	ErrUnknown = errors.New("outcome of the write is unknown")

	// ErrUnavailable is returned when the store did not accept the request
	// because it is unreachable, overloaded, full or closed. Nothing was
	// written.
	ErrUnavailable = errors.New("store is unavailable")

	// ErrLapsed is returned together with [ErrUnavailable] when a guard of the context refused
	// to send a write: see [WithGuard].
	ErrLapsed = fmt.Errorf("%w: the right to write has lapsed", ErrUnavailable)

	// ErrNoSpace is returned together with [ErrUnavailable] when a write was refused
	// because too little disk space is free. Reads and [Reclaiming] writes may go on.
	ErrNoSpace = errors.New("too little free disk space")

	// ErrDenied is returned together with [ErrUnavailable] when the store refuses a request
	// until an operator acts: the server lacks a right, its credential is not valid, or the
	// store admits no requests from its network.
	ErrDenied = errors.New("the store denies the server access")

	// ErrOtherVersion is returned together with [ErrUnavailable] when the store's schema was
	// changed, and this program does not work on it.
	ErrOtherVersion = errors.New("the store has a schema of another version")

	// ErrDamaged is returned when a data directory cannot be read, or has another
	// version's layout.
	ErrDamaged = errors.New("data directory cannot be read")

	// ErrLost is why a process ends: its open data directory was removed or replaced. A
	// directory that is put back may lack what was written in the meantime.
	ErrLost = errors.New("data directory was removed or replaced while it was open")

	// ErrInvalid is returned for a request that breaks the port's rules, such
	// as a batch over two partitions. It is a defect of the caller.
	ErrInvalid = errors.New("invalid store request")

	// ErrTooLarge is returned for a row or batch over the port's limits.
	ErrTooLarge = errors.New("row or batch is too large")

	// ErrCorrupt is returned for stored bytes that the driver cannot have
	// written.
	ErrCorrupt = errors.New("stored row cannot be decoded")
)

// IsOutage reports whether the store did not answer, or not in time, rather than with a row that
// cannot be read: the same call may succeed later.
func IsOutage(err error) bool { return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) }

// ConflictError is the drivers' [ErrConflict], with the row if the store names
// it.
type ConflictError struct {
	// Key is the first row in the order of the batch whose precondition did
	// not hold; the zero Key if the store does not say.
	Key Key
	// Verb is the op's verb.
	Verb Verb
}

// Error names the row.
func (e *ConflictError) Error() string {
	if e.Key == (Key{}) {
		return "conflict on a row of the batch"
	}
	return fmt.Sprintf("conflict: %s %s", e.Verb, e.Key)
}

// Unwrap makes every ConflictError an [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }
