package aztablestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

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
	if err := validateETags(batch); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	c := commit{store: s, batch: batch, etags: make([]tablestore.ETag, len(batch)), absent: map[int]bool{}}
	if err := c.run(ctx); err != nil {
		return nil, fmt.Errorf("commit to %s/%s: %w", batch[0].Key.Table, batch[0].Key.Partition, err)
	}
	return c.etags, nil
}

// validateETags refuses versions that this store never assigns. One of them,
// "*", would make a replacement unconditional.
func validateETags(batch tablestore.Batch) error {
	for i := range batch {
		op := &batch[i]
		inner, ok := strings.CutPrefix(string(op.ETag), `W/"`)
		if op.ETag == "" || ok && strings.HasSuffix(inner, `"`) && !strings.ContainsFunc(inner, control) {
			continue
		}
		return fmt.Errorf("%w: %s %s: %q is not an ETag of this store", tablestore.ErrInvalid, op.Verb, op.Key, op.ETag)
	}
	return nil
}

// control reports whether the character is a control character, which could end
// a header line.
func control(r rune) bool { return r < 0x20 || r == 0x7F }

// commit is one run of Commit.
type commit struct {
	store  *Store
	batch  tablestore.Batch
	etags  []tablestore.ETag
	absent map[int]bool // Indexes of ops that discard an absent row.
	// turnedAway says that the service answered an earlier try and said that it
	// did not apply it.
	turnedAway bool
}

// run submits the batch until its outcome is known, and fills in the ETags.
func (c *commit) run(ctx context.Context) error {
	for range maxRounds {
		places := c.places()
		if len(places) == 0 {
			return nil
		}
		failed := c.submit(ctx, places)
		switch {
		case failed == nil:
			return nil
		case !failed.conflict():
			return failed.ofWrite()
		}
		again, err := c.leaveOut(ctx, failed, places)
		if err != nil {
			return err
		}
		if !again {
			return c.conflict(failed, places)
		}
	}
	return fmt.Errorf("%w: rows to discard came and went %d times", tablestore.ErrUnavailable, maxRounds)
}

// places returns the indexes of the batch's ops to submit.
func (c *commit) places() []int {
	places := make([]int, 0, len(c.batch))
	for i := range c.batch {
		if !c.absent[i] {
			places = append(places, i)
		}
	}
	return places
}

// submit sends the ops with these indexes as one transaction.
func (c *commit) submit(ctx context.Context, places []int) *requestError {
	table, partition := c.batch[0].Key.Table, c.batch[0].Key.Partition
	actions := c.actions(places)
	tx := &transaction{ops: len(places)}
	client := c.store.service.NewClient(table)
	write := request{name: "commit", target: table + "/" + partition}
	turnedAway, failed := c.store.send(ctx, write, func(ctx context.Context) error {
		_, err := client.SubmitTransaction(withTransaction(ctx, tx), actions, nil)
		return err
	})
	c.turnedAway = c.turnedAway || turnedAway
	if failed != nil {
		return failed
	}
	for i, place := range places {
		verb := c.batch[place].Verb
		if verb == tablestore.Delete || verb == tablestore.Discard {
			continue
		}
		if c.etags[place] = tx.etags[i]; tx.etags[i] == "" {
			return &requestError{effect: unclear, op: i, cause: fmt.Errorf("%w: no ETag of %s", errReply, c.batch[place].Key)}
		}
	}
	return nil
}

// actions returns the ops with these indexes as the SDK's actions.
func (c *commit) actions(places []int) []aztables.TransactionAction {
	actions := make([]aztables.TransactionAction, len(places))
	for i, place := range places {
		op := &c.batch[place]
		actions[i] = aztables.TransactionAction{Entity: encodeRow(op.Key, op.Properties)}
		actions[i].ActionType, actions[i].IfMatch = action(op)
	}
	return actions
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

// conflict returns the error for a precondition that did not hold. After a try
// that the service said it did not apply, the conflicting row may be the
// batch's own.
func (c *commit) conflict(failed *requestError, places []int) error {
	if c.turnedAway {
		return fmt.Errorf("%w: a conflict after an earlier try: %w", tablestore.ErrUnknown, failed)
	}
	if failed.op < 0 {
		return &tablestore.ConflictError{}
	}
	op := &c.batch[places[failed.op]]
	return &tablestore.ConflictError{Key: op.Key, Verb: op.Verb}
}

// leaveOut looks up which discarded rows are absent, if that may be why the
// batch failed, and reports whether to submit it again.
func (c *commit) leaveOut(ctx context.Context, failed *requestError, places []int) (again bool, err error) {
	if !failed.missing() {
		return false, nil
	}
	named := failed.op >= 0
	if named && c.batch[places[failed.op]].Verb != tablestore.Discard {
		return false, nil
	}
	var discards []int
	for _, place := range places {
		if c.batch[place].Verb == tablestore.Discard {
			discards = append(discards, place)
		}
	}
	if named && len(discards) == 1 {
		c.absent[discards[0]] = true
		return true, nil
	}
	found, err := c.lookUp(ctx, discards)
	return named || found > 0, err
}

// lookUp records which rows at these indexes are absent, and returns their
// number.
func (c *commit) lookUp(ctx context.Context, places []int) (absent int, err error) {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookUps)
	for _, place := range places {
		group.Go(func() error {
			_, err := c.store.get(ctx, c.batch[place].Key)
			if errors.Is(err, tablestore.ErrCorrupt) {
				return nil // The row exists.
			}
			if !errors.Is(err, tablestore.ErrNotFound) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			c.absent[place] = true
			absent++
			return nil
		})
	}
	err = group.Wait()
	return absent, err
}
