package aztablestore_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// The causes of a denial need different remedies, so the error shows the service's code, also
// from XML, and a clock that is too far from the account's.
func TestDenied_SaysWhy(t *testing.T) {
	t.Parallel()
	const xml = `<?xml version="1.0" encoding="utf-8"?><error xmlns="http://schemas.microsoft.com/ado/2007/08/dataservices/metadata">` +
		`<code>AuthenticationFailed</code><message xml:lang="en-US">Server failed to authenticate the request.</message></error>`
	answeredAt := func(date string) answer { return reply(403, xml, "Date", date, "X-Ms-Request-Id", "1") }
	const skewed = "(this host's clock differs from the account's by 16m"
	for name, test := range map[string]struct {
		answer answer
		want   string
		skewed bool
	}{
		"no role":             {refuses(403, "AuthorizationPermissionMismatch"), "HTTP 403 AuthorizationPermissionMismatch: The reason.", false},
		"the network's rules": {refuses(403, "AuthorizationFailure"), "HTTP 403 AuthorizationFailure: The reason.", false},
		"no token":            {refuses(401, "NoAuthenticationInformation"), "HTTP 401 NoAuthenticationInformation: The reason.", false},
		"a proxy":             {reply(403, "<html>"), "HTTP 403", false},
		"a key":               {answeredAt("Sat, 01 Jan 2000 00:14:59 GMT"), "HTTP 403 AuthenticationFailed", false},
		"a clock behind":      {answeredAt("Sat, 01 Jan 2000 00:16:00 GMT"), "HTTP 403 AuthenticationFailed", true},
		"a clock ahead":       {answeredAt("Fri, 31 Dec 1999 23:43:00 GMT"), "HTTP 403 AuthenticationFailed", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // The bubble's clock begins at midnight of 2000-01-01.
				store, _ := scripted(t, aztablestore.Options{}, test.answer)
				_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
				expectError(t, err, errDenied)
				if text := err.Error(); !strings.Contains(text, test.want) || strings.Contains(text, skewed) != test.skewed {
					t.Errorf("%q, want %q, and the clock %t", text, test.want, test.skewed)
				}
			})
		})
	}
}

// A denial is an answer: the account is in service, and holds nothing back once access is
// granted again.
func TestDenied_IsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		denies, requests := true, 0
		store := chosen(t, aztablestore.Options{}, func(*request) answer {
			requests++
			if denies {
				return refuses(403, "AuthorizationPermissionMismatch")
			}
			return row()
		})
		for range 50 {
			_, err := store.Get(t.Context(), key("a"))
			expectError(t, err, errDenied)
		}
		denies = false
		if _, err := store.Get(t.Context(), key("a")); err != nil || requests != 51 || store.Outage() != 0 {
			t.Errorf("with the right: %v; %d requests, outage of %s", err, requests, store.Outage())
		}
	})
}

// After a write was denied, Writable finds out whether writes still are, without a caller's
// write. Until then it sends nothing.
func TestWritable(t *testing.T) {
	t.Parallel()
	var write answer // to each transaction
	requests, probe := 0, reply(200, `{"odata.etag":"W/\"1\"","PartitionKey":"check","RowKey":"probe"}`, "Content-Type", "application/json")
	store := chosen(t, once, func(req *request) answer {
		requests++
		if strings.HasSuffix(req.URL.Path, "/$batch") {
			return write
		}
		return probe
	})
	allowed, denied, throttled := inside(done(one)), refuses(403, "AuthorizationPermissionMismatch"), refuses(503, "ServerBusy")
	for _, step := range []struct {
		name     string
		write    answer
		commits  error // the outcome of a caller's write
		writable error
		requests int // of Writable
	}{
		{"before any write", nil, nil, nil, 0},
		{"allowed", allowed, nil, nil, 0},
		{"throttled", throttled, tablestore.ErrUnavailable, nil, 0},
		{"denied", denied, errDenied, errDenied, 1},
		{"still denied", denied, nil, errDenied, 1},
		{"denied, and throttled", throttled, nil, nil, 1}, // Reads tell of an account that does not answer.
		{"denied again", denied, nil, errDenied, 1},
		{"granted", allowed, nil, nil, 3},
		{"granted for good", allowed, nil, nil, 0},
	} {
		write = step.write
		if step.commits != nil || step.name == "allowed" {
			_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
			expectError(t, err, step.commits)
		}
		requests = 0
		err := store.Writable(t.Context())
		expectError(t, err, step.writable)
		if (err == nil) != (step.writable == nil) || requests != step.requests {
			t.Errorf("%s: %v after %d requests, want %v after %d", step.name, err, requests, step.writable, step.requests)
		}
	}
}

// A read that is denied says nothing about writes.
func TestWritable_OfAStoreWhoseReadsAreDenied(t *testing.T) {
	t.Parallel()
	store, service := scripted(t, once, refuses(403, "AuthorizationFailure"))
	_, err := store.Get(t.Context(), key("a"))
	expectError(t, err, errDenied)
	if err := store.Writable(t.Context()); err != nil || service.requests() != 1 {
		t.Errorf("%v after %d requests", err, service.requests())
	}
}
