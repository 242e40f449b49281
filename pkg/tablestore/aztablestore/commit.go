package aztablestore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// maxRounds bounds how often a batch is submitted again because rows that
	// it discards were absent.
	maxRounds = 5
	// lookUps is how many rows are looked up in parallel.
	lookUps = 8
)

// Commit implements [tablestore.Store]. A batch of any size is one transaction
// of Azure Tables, even a single op: all answers then have one form, and the
// emulator's single writes corrupt long texts.
//
// Azure Tables refuses a transaction that deletes an absent row. A batch that
// discards one is therefore submitted again without that op. A row inserted in
// between stays, which is acceptable because Discard is for hints.
func (s *Store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if err := batch.Validate(); err != nil {
		return nil, err
	}
	c := commit{store: s, batch: batch, etags: make([]tablestore.ETag, len(batch))}
	for i := range batch {
		// Refuse versions that this store never assigns. One of them, "*", would
		// make a replacement unconditional; a control character could end a header.
		if op := &batch[i]; op.ETag != "" && !ownETag.MatchString(string(op.ETag)) {
			return nil, fmt.Errorf("%w: %s %s: %q is not an ETag of this store", tablestore.ErrInvalid, op.Verb, op.Key, op.ETag)
		}
		c.places = append(c.places, i)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := c.run(ctx); err != nil {
		if errors.Is(err, tablestore.ErrDenied) {
			s.denied.Store(new(batch[0].Key.Table))
		}
		return nil, fmt.Errorf("commit to %s/%s: %w", batch[0].Key.Table, batch[0].Key.Partition, err)
	}
	return c.etags, nil
}

// ownETag matches the ETags that the service assigns.
var ownETag = regexp.MustCompile(`^W/"[^\x00-\x1f\x7f]*"$`)

// commit is one run of Commit.
type commit struct {
	store  *Store
	batch  tablestore.Batch
	etags  []tablestore.ETag
	places []int // The indexes of the ops to submit, without discards of absent rows.
	// turnedAway says that the service answered an earlier try that it did not apply it.
	turnedAway bool
}

// run submits the batch until its outcome is known, and fills in the ETags.
func (c *commit) run(ctx context.Context) error {
	for range maxRounds {
		if len(c.places) == 0 {
			return nil
		}
		failed := c.submit(ctx)
		switch {
		case failed == nil:
			return nil
		case !failed.conflict():
			return failed.ofWrite()
		}
		again, err := c.leaveOut(ctx, failed)
		switch {
		case err != nil:
			return err
		case again:
		case c.turnedAway:
			// The conflicting row may be the batch's own: a try that the service
			// said it did not apply may have been applied.
			return fmt.Errorf("%w: a conflict after an earlier try: %w", tablestore.ErrUnknown, failed)
		case failed.op < 0:
			return &tablestore.ConflictError{}
		default:
			op := &c.batch[c.places[failed.op]]
			return &tablestore.ConflictError{Key: op.Key, Verb: op.Verb}
		}
	}
	return fmt.Errorf("%w: rows to discard came and went %d times", tablestore.ErrUnavailable, maxRounds)
}

// submit sends the ops as one transaction.
func (c *commit) submit(ctx context.Context) *requestError {
	table, partition := c.batch[0].Key.Table, c.batch[0].Key.Partition
	actions := make([]aztables.TransactionAction, len(c.places))
	for i, place := range c.places {
		op := &c.batch[place]
		actions[i] = aztables.TransactionAction{Entity: encodeRow(op.Key, op.Properties)}
		actions[i].ActionType, actions[i].IfMatch = action(op)
	}
	tx := &transaction{ops: len(actions)}
	client := c.store.service.NewClient(table)
	write := request{name: "commit", key: tablestore.Key{Table: table, Partition: partition}}
	turnedAway, failed := c.store.send(ctx, write, func(ctx context.Context) error {
		_, err := client.SubmitTransaction(context.WithValue(ctx, transactionKey{}, tx), actions, nil)
		return err
	})
	c.turnedAway = c.turnedAway || turnedAway
	if failed != nil {
		return failed
	}
	for i, place := range c.places {
		op := &c.batch[place]
		if op.Verb == tablestore.Delete || op.Verb == tablestore.Discard {
			continue
		}
		if c.etags[place] = tx.etags[i]; tx.etags[i] == "" {
			return &requestError{effect: unclear, op: i, cause: fmt.Errorf("%w: no ETag of %s", errReply, op.Key)}
		}
	}
	return nil
}

// action returns the op's type and precondition. An update without a
// precondition is an upsert, which is right only for Put.
func action(op *tablestore.Op) (aztables.TransactionType, *azcore.ETag) {
	whatever, version := azcore.ETagAny, azcore.ETag(op.ETag)
	switch op.Verb {
	case tablestore.Insert:
		return aztables.TransactionTypeAdd, nil
	case tablestore.Put:
		return aztables.TransactionTypeInsertReplace, nil
	case tablestore.Replace:
		return aztables.TransactionTypeUpdateReplace, &version
	case tablestore.Discard:
		return aztables.TransactionTypeDelete, &whatever
	default:
		return aztables.TransactionTypeDelete, &version
	}
}

// leaveOut drops the ops that discard absent rows, if that may be why the batch
// failed, and reports whether to submit it again.
func (c *commit) leaveOut(ctx context.Context, failed *requestError) (again bool, err error) {
	named := failed.op >= 0
	if !failed.missing() || named && c.batch[c.places[failed.op]].Verb != tablestore.Discard {
		return false, nil
	}
	var discards []int
	for _, place := range c.places {
		if c.batch[place].Verb == tablestore.Discard {
			discards = append(discards, place)
		}
	}
	absent := make([]bool, len(c.batch))
	if named && len(discards) == 1 {
		absent[discards[0]] = true
	} else {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(lookUps)
		for _, place := range discards {
			group.Go(func() error {
				_, err := c.store.get(ctx, c.batch[place].Key)
				absent[place] = errors.Is(err, tablestore.ErrNotFound)
				if absent[place] || errors.Is(err, tablestore.ErrCorrupt) { // A corrupt row exists.
					return nil
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return false, err
		}
	}
	c.places = slices.DeleteFunc(c.places, func(place int) bool { return absent[place] })
	return named || slices.Contains(absent, true), nil
}
