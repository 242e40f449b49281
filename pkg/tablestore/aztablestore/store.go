package aztablestore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var errClosed = errors.New("the store is closed")

// Store is a table store in an account of Azure Table Storage. It implements
// [tablestore.Store]. All methods may be called concurrently.
type Store struct {
	options Options
	client  *http.Client
	service *aztables.ServiceClient
	closed  atomic.Bool
}

var _ tablestore.Store = (*Store)(nil)

// begin returns the context of one call of the port, which ends after the call
// timeout at the latest, or why the store refuses the call.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.closed.Load() {
		return nil, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, errClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	ctx, end := context.WithTimeout(ctx, s.options.CallTimeout)
	return ctx, end, nil
}

// Get implements [tablestore.Store].
func (s *Store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return tablestore.Row{}, err
	}
	defer end()
	return s.get(ctx, key)
}

// get reads the row of a valid key within a call.
func (s *Store) get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	table := s.service.NewClient(key.Table)
	var entity []byte
	read := request{name: "get", target: key.String(), repeatable: true}
	_, failed := s.send(ctx, read, func(ctx context.Context) error {
		answer, err := table.GetEntity(ctx, key.Partition, key.Row, nil)
		entity = answer.Value
		return err
	})
	if failed != nil && failed.noRow() {
		return tablestore.Row{}, fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
	}
	if failed != nil {
		return tablestore.Row{}, fmt.Errorf("get %s: %w", key, failed.ofRead())
	}
	row, err := decodeRow(key.Table, entity)
	if err == nil && row.Key != key {
		err = fmt.Errorf("%w: the answer is row %s", tablestore.ErrCorrupt, row.Key)
	}
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("get %s: %w", key, err)
	}
	return row, nil
}

// Close implements [tablestore.Store]. Committed rows stay in the account.
func (s *Store) Close() error {
	s.closed.Store(true)
	if s.options.Transport == nil {
		s.client.CloseIdleConnections()
	}
	return nil
}
