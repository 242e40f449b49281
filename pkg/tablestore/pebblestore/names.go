package pebblestore

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxNames is how many property names the store numbers. Rows spell all others.
const maxNames = 1024

// names numbers the names of properties, which would otherwise be up to half of a row. A
// batch with rows that spell names also writes a header with these names; later rows use
// their numbers.
//
//	invariant: a row with number n is in the log ⇒ a header with n is before it
type names struct {
	learning sync.Mutex // held from when a batch with a header is made until it is in the log
	known    atomic.Pointer[tablestore.Names]
}

// learnNames adds a header with all names of the writes to the batch. It returns a
// function that the caller calls with the result of applying the batch, or nil if there
// is no room for more names, or another batch with a header is being written.
func (s *Store) learnNames(batch *pebble.Batch, writes []tablestore.RowWrite) (applied func(error), err error) {
	t := &s.names
	if !t.learning.TryLock() {
		return nil, nil
	}
	known := t.known.Load()
	list := slices.Clone(known.List())
	for i := range writes {
		for _, p := range writes[i].Properties {
			if known.Number(p.Name) == 0 && len(list) < maxNames && !slices.Contains(list[len(known.List()):], p.Name) {
				list = append(list, p.Name)
			}
		}
	}
	if len(list) == len(known.List()) {
		t.learning.Unlock()
		return nil, nil
	}
	header := s.header
	if header.names, err = tablestore.NewNames(list); err == nil {
		err = batch.Set(headerKey, encodeHeader(header), nil)
	}
	if err != nil {
		t.learning.Unlock()
		return nil, err
	}
	return func(err error) {
		if err == nil {
			t.known.Store(header.names)
		}
		t.learning.Unlock()
	}, nil
}
