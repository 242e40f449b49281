package aztablestore_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// gone answers a transaction that stopped at an op whose row is absent.
func gone(place string) answer {
	return inside(failed(404, "ResourceNotFound", place+"The specified resource does not exist."))
}

// rowNamed answers a read of that row.
func rowNamed(name string) answer {
	return reply(200, `{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"`+name+`"}`, "Content-Type", "application/json")
}

// TestDiscardOfAbsentRows is about discards that Azure Tables refuses and the
// port allows.
func TestDiscardOfAbsentRows(t *testing.T) {
	t.Parallel()
	absent := refuses(404, "ResourceNotFound")
	conflict := &tablestore.ConflictError{Key: key("b"), Verb: tablestore.Replace}
	for name, test := range map[string]struct {
		batch    tablestore.Batch
		answers  []answer
		requests int
		want     error
	}{
		"alone":                 {tablestore.Batch{discard("a")}, []answer{gone("0:")}, 1, nil},
		"with others":           {tablestore.Batch{put("x"), discard("a"), replace("b")}, []answer{gone("1:"), inside(done(one), done(two))}, 2, nil},
		"with a conflict":       {tablestore.Batch{discard("a"), replace("b")}, []answer{gone("0:"), inside(failed(412, "UpdateConditionNotSatisfied", "0:No."))}, 2, conflict},
		"not what failed":       {tablestore.Batch{discard("a"), replace("b")}, []answer{gone("1:")}, 1, conflict},
		"two of two":            {tablestore.Batch{discard("a"), discard("c")}, []answer{gone("0:"), absent}, 3, nil},
		"no place, one absent":  {tablestore.Batch{discard("a"), replace("b")}, []answer{gone(""), absent, inside(done(one))}, 3, nil},
		"no place, none absent": {tablestore.Batch{discard("a"), replace("b")}, []answer{gone(""), rowNamed("a")}, 2, &tablestore.ConflictError{}},
		"none to look up":       {tablestore.Batch{remove("a"), replace("b")}, []answer{gone("")}, 1, &tablestore.ConflictError{}},
		"no look-up":            {tablestore.Batch{discard("a"), discard("c")}, []answer{gone("0:"), refuses(403, "AuthorizationFailure")}, 3, tablestore.ErrUnavailable},
		"a row in the way":      {tablestore.Batch{discard("a"), replace("b")}, []answer{gone(""), reply(200, `{"RowKey":"a"}`, "Content-Type", "application/json")}, 2, &tablestore.ConflictError{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, test.answers...)
			etags, err := store.Commit(t.Context(), test.batch)
			expectError(t, err, test.want)
			if service.requests() != test.requests || (err == nil) != (test.want == nil) {
				t.Errorf("%v after %d requests, want %d", err, service.requests(), test.requests)
			}
			if name == "with others" {
				if diff := cmp.Diff([]tablestore.ETag{one, "", two}, etags); diff != "" {
					t.Errorf("ETags (-want +got):\n%s", diff)
				}
				if strings.Contains(service.seen[1], "DELETE") {
					t.Errorf("the absent row is still in:\n%s", service.seen[1])
				}
			}
		})
	}
}

// TestDiscardOfRowsThatComeAndGo has another writer insert, after each refusal,
// the row that the transaction found absent: the rounds end.
func TestDiscardOfRowsThatComeAndGo(t *testing.T) {
	t.Parallel()
	var submitted atomic.Int64
	store := chosen(t, once, func(req *request) answer {
		if req.Method == http.MethodGet {
			return rowNamed("a")
		}
		submitted.Add(1)
		return gone("0:")
	})
	_, err := store.Commit(t.Context(), tablestore.Batch{discard("a"), discard("b"), replace("c")})
	expectError(t, err, tablestore.ErrUnavailable)
	if submitted.Load() != 5 {
		t.Errorf("submitted %d times", submitted.Load())
	}
}
