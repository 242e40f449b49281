package aztablestore_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// errDenied is the outcome of a request that was denied access.
var errDenied = errors.Join(tablestore.ErrUnavailable, tablestore.ErrDenied)

// once allows no retries.
var once = aztablestore.WithTries(aztablestore.Options{}, 1)

func TestCommitReturnsTheVersionOfEachOp(t *testing.T) {
	t.Parallel()
	store, _ := scripted(t, once, inside(done(one), done(""), done(two), done(""), done(one)))
	batch := tablestore.Batch{insert("a"), remove("b"), replace("c"), discard("d"), put("e")}
	etags, err := store.Commit(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]tablestore.ETag{one, "", two, "", one}, etags); diff != "" {
		t.Errorf("ETags (-want +got):\n%s", diff)
	}
}

// TestCommitSendsPreconditions checks the requests: an update without If-Match
// would be an upsert.
func TestCommitSendsPreconditions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		op           tablestore.Op
		method       string
		precondition string // Empty if none may be sent.
	}{
		"insert":  {insert("a"), "POST", ""},
		"replace": {replace("a"), "PUT", one},
		"delete":  {remove("a"), "DELETE", one},
		"put":     {put("a"), "PUT", ""},
		"discard": {discard("a"), "DELETE", "*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, inside(done(one)))
			if _, err := store.Commit(t.Context(), tablestore.Batch{test.op}); err != nil {
				t.Fatal(err)
			}
			sent := service.seen[0]
			if !strings.Contains(sent, "\r\n"+test.method+" http://nowhere.invalid/a/table") {
				t.Errorf("no %s in:\n%s", test.method, sent)
			}
			_, after, found := strings.Cut(sent, "If-Match: ")
			value, _, _ := strings.Cut(after, "\r\n")
			if found != (test.precondition != "") || value != test.precondition {
				t.Errorf("If-Match %q, want %q", value, test.precondition)
			}
		})
	}
}

// TestTransactionThatFailed is about failures inside answers whose outer status
// is 202.
func TestTransactionThatFailed(t *testing.T) {
	t.Parallel()
	batch := tablestore.Batch{insert("a"), replace("b"), remove("c")}
	for name, test := range map[string]struct {
		part string
		want error
	}{
		"insert of a row that is there": {failed(409, "EntityAlreadyExists", "0:There."), &tablestore.ConflictError{Key: key("a"), Verb: tablestore.Insert}},
		"another version":               {failed(412, "UpdateConditionNotSatisfied", "1:Changed."), &tablestore.ConflictError{Key: key("b"), Verb: tablestore.Replace}},
		"a missing row":                 {failed(404, "ResourceNotFound", "2:Gone."), &tablestore.ConflictError{Key: key("c"), Verb: tablestore.Delete}},
		"no place":                      {failed(412, "UpdateConditionNotSatisfied", "Changed."), &tablestore.ConflictError{}},
		"a place out of range":          {failed(412, "UpdateConditionNotSatisfied", "3:Changed."), &tablestore.ConflictError{}},
		"a place that is no number":     {failed(412, "UpdateConditionNotSatisfied", "-1:Changed."), &tablestore.ConflictError{}},
		"a missing row, no place":       {failed(404, "ResourceNotFound", "Gone."), &tablestore.ConflictError{}},
		"no body":                       {"HTTP/1.1 412 Precondition Failed\r\n\r\n", &tablestore.ConflictError{}},
		"a missing table":               {failed(404, "TableNotFound", "0:No table."), tablestore.ErrUnavailable},
		"bad input":                     {failed(400, "InvalidInput", "1:Bad."), tablestore.ErrInvalid},
		"a large value":                 {failed(400, "PropertyValueTooLarge", "1:Large."), tablestore.ErrTooLarge},
		"a large row":                   {failed(400, "EntityTooLarge", "1:Large."), tablestore.ErrTooLarge},
		"no right":                      {failed(403, "AuthorizationPermissionMismatch", "0:No."), errDenied},
		"throttled":                     {failed(503, "ServerBusy", "0:Busy."), tablestore.ErrUnavailable},
		"timed out":                     {failed(500, "OperationTimedOut", "0:Late."), tablestore.ErrUnknown},
		"a code of no kind":             {failed(599, "Strange", "0:Strange."), tablestore.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, inside(test.part))
			etags, err := store.Commit(t.Context(), batch)
			expectError(t, err, test.want)
			if etags != nil {
				t.Errorf("a failure came with the ETags %q", etags)
			}
			if service.requests() != 1 {
				t.Errorf("%d requests", service.requests())
			}
		})
	}
}

// expectError fails unless err has exactly that outcome.
func expectError(t *testing.T, err, want error) {
	t.Helper()
	var conflict, wanted *tablestore.ConflictError
	errors.As(err, &conflict)
	errors.As(want, &wanted)
	if diff := cmp.Diff(wanted, conflict); diff != "" {
		t.Errorf("%v: conflict (-want +got):\n%s", err, diff)
	}
	for _, class := range []error{tablestore.ErrNotFound, tablestore.ErrUnknown, tablestore.ErrUnavailable,
		tablestore.ErrDenied, tablestore.ErrInvalid, tablestore.ErrTooLarge, tablestore.ErrCorrupt} {
		if errors.Is(err, class) != errors.Is(want, class) {
			t.Errorf("%v: is %q %t, want %t", err, class, errors.Is(err, class), errors.Is(want, class))
		}
	}
}

func TestTransactionOfOneOpNeedsNoPlace(t *testing.T) {
	t.Parallel()
	store, _ := scripted(t, once, inside(failed(412, "UpdateConditionNotSatisfied", "Changed.")))
	_, err := store.Commit(t.Context(), tablestore.Batch{replace("a")})
	expectError(t, err, &tablestore.ConflictError{Key: key("a"), Verb: tablestore.Replace})
}

// TestCommitWithoutATransactionsAnswer is about replies from gateways and
// proxies before the table service.
func TestCommitWithoutATransactionsAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer answer
		want   error
	}{
		"no credentials":           {refuses(401, "NoAuthenticationInformation"), errDenied},
		"wrong credentials":        {refuses(403, "AuthenticationFailed"), errDenied},
		"no such account":          {refuses(404, "ResourceNotFound"), tablestore.ErrUnavailable},
		"no such page":             {reply(404, "<html>"), tablestore.ErrUnavailable},
		"a large body":             {refuses(413, "RequestBodyTooLarge"), tablestore.ErrTooLarge},
		"a bad header":             {refuses(400, "InvalidHeaderValue"), tablestore.ErrInvalid},
		"a bad header, in XML":     {reply(400, "<error><code>InvalidHeaderValue</code></error>"), tablestore.ErrInvalid},
		"too many requests":        {reply(429, ""), tablestore.ErrUnavailable},
		"busy":                     {refuses(503, "ServerBusy"), tablestore.ErrUnavailable},
		"busy by header":           {reply(503, "", "x-ms-error-code", "ServerBusy"), tablestore.ErrUnavailable},
		"come back later":          {reply(503, "", "Retry-After", "1"), tablestore.ErrUnavailable},
		"unavailable, unexplained": {reply(503, "upstream reset"), tablestore.ErrUnknown},
		"internal error":           {refuses(500, "InternalError"), tablestore.ErrUnknown},
		"bad gateway":              {reply(502, ""), tablestore.ErrUnknown},
		"gateway timeout":          {reply(504, ""), tablestore.ErrUnknown},
		"request timeout":          {reply(408, ""), tablestore.ErrUnknown},
		"redirect":                 {reply(307, "", "Location", "http://elsewhere.invalid/"), tablestore.ErrUnknown},
		"no content":               {reply(204, ""), tablestore.ErrUnknown},
		"a page":                   {reply(200, "<html>", "Content-Type", "text/html"), tablestore.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, test.answer)
			_, err := store.Commit(t.Context(), tablestore.Batch{insert("a"), replace("b")})
			expectError(t, err, test.want)
			if service.requests() != 1 {
				t.Errorf("%d requests", service.requests())
			}
		})
	}
}

// TestAnswerThatDoesNotTell is about answers that look like success.
func TestAnswerThatDoesNotTell(t *testing.T) {
	t.Parallel()
	whole := multipart(done(one), done(two))
	for name, answer := range map[string]answer{
		"empty":               reply(202, "", "Content-Type", batchType),
		"short":               reply(202, "-", "Content-Type", batchType),
		"no type":             reply(202, whole),
		"no boundary":         reply(202, whole, "Content-Type", "multipart/mixed"),
		"another boundary":    reply(202, whole, "Content-Type", "multipart/mixed; boundary=other"),
		"JSON":                reply(202, complaint("InvalidInput", "0:Bad."), "Content-Type", "application/json"),
		"no parts":            inside(),
		"a part too few":      inside(done(one)),
		"a part too many":     inside(done(one), done(two), done(two)),
		"a part without ETag": inside(done(one), done("")),
		"an invalid part":     inside(done(one), "hello"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, _ := scripted(t, once, answer)
			etags, err := store.Commit(t.Context(), tablestore.Batch{insert("a"), replace("b")})
			expectError(t, err, tablestore.ErrUnknown)
			if etags != nil {
				t.Errorf("it came with the ETags %q", etags)
			}
		})
	}
}

// TestAnswerTruncatedAnywhere truncates answers at every byte. None may count
// as a commit; a refusal may still name the row once its part is complete.
func TestAnswerTruncatedAnywhere(t *testing.T) {
	t.Parallel()
	batch := tablestore.Batch{insert("a"), replace("b")}
	for name, whole := range map[string]string{
		"committed": multipart(done(one), done(two)),
		"refused":   multipart(failed(412, "UpdateConditionNotSatisfied", "1:Changed.")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := range len(whole) - len("\r\n") {
				store, _ := scripted(t, once, reply(202, whole[:n], "Content-Type", batchType))
				if _, err := store.Commit(t.Context(), batch); !errors.Is(err, tablestore.ErrUnknown) {
					t.Errorf("cut after %d of %d bytes: %v, want ErrUnknown", n, len(whole), err)
				}
			}
		})
	}
}

func TestErrorsAreOneShortLine(t *testing.T) {
	t.Parallel()
	long := "0:" + strings.Repeat("ü", 1000)
	store, _ := scripted(t, once, inside(failed(400, "InvalidInput", long)))
	_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
	if text := fmt.Sprint(err); len(text) > 400 || strings.Contains(text, "\n") || !strings.Contains(text, "InvalidInput: üüü") {
		t.Errorf("message of %d bytes: %s", len(text), text)
	}
}

// TestErrorsDoNotContainTheSignature checks that errors do not contain the
// address, which may be signed.
func TestErrorsDoNotContainTheSignature(t *testing.T) {
	t.Parallel()
	service := &script{answers: []answer{lost(errors.New("reset")), reply(http.StatusForbidden, "")}}
	store := open(t, aztablestore.WithTries(aztablestore.Options{Transport: service,
		Connection: "AccountName=a;SharedAccessSignature=sv=2019-02-02&sig=secret"}, 1))
	for range 2 {
		_, err := store.Get(t.Context(), key("a"))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v", err)
		}
	}
	if !strings.Contains(service.seen[0], "sig=secret") {
		t.Errorf("the request %q is not signed", service.seen[0])
	}
}

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
		"no look-up":            {tablestore.Batch{discard("a"), discard("c")}, []answer{gone("0:"), refuses(403, "AuthorizationFailure")}, 3, errDenied},
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
