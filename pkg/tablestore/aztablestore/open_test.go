package aztablestore_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0"
	endpoint := func(address string) aztablestore.Options { return aztablestore.Options{Endpoint: address} }
	with := func(change func(*aztablestore.Options)) aztablestore.Options {
		options := aztablestore.Options{Connection: scriptedConnection}
		change(&options)
		return options
	}
	for name, test := range map[string]struct {
		options aztablestore.Options
		want    string
	}{
		"nothing":                    {aztablestore.Options{}, "Options.Connection or Options.Endpoint is required"},
		"both":                       {with(func(o *aztablestore.Options) { o.Endpoint = "https://a.table.core.windows.net" }), "exclude each other"},
		"no connection string":       {aztablestore.Options{Connection: "UseDevelopmentStorage=false"}, "Options.Connection cannot be used"},
		"an invalid key":             {aztablestore.Options{Connection: "AccountName=a;AccountKey=" + secret + "?"}, "Options.Connection cannot be used"},
		"an endpoint in clear text":  {endpoint("http://a.table.core.windows.net"), "Options.Endpoint is not an https address"},
		"an endpoint without a host": {endpoint("https:///a"), "Options.Endpoint"},
		"a signed endpoint":          {endpoint("https://a.table.core.windows.net/?sig=" + secret), "Options.Endpoint"},
		"an endpoint with a user":    {endpoint("https://a:" + secret + "@host"), "Options.Endpoint"},
		"an invalid endpoint":        {endpoint("https://a b"), "Options.Endpoint"},
		"a table in upper case":      {with(func(o *aztablestore.Options) { o.Tables = []string{"fine", "Jobs"} }), `Options.Tables[1]: query: invalid store request: table name "Jobs"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := aztablestore.Open(t.Context(), test.options)
			if err == nil || store != nil {
				t.Fatalf("open: %v, %v", store, err)
			}
			if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("error %q, want %q and no secret", err, test.want)
			}
		})
	}
}

func TestOpenCreatesTables(t *testing.T) {
	t.Parallel()
	created := reply(201, `{"TableName":"table"}`, "Content-Type", "application/json")
	for name, test := range map[string]struct {
		answers  []answer
		requests int
		want     error
	}{
		"missing":              {[]answer{created}, 2, nil},
		"there":                {[]answer{refuses(409, "TableAlreadyExists")}, 2, nil},
		"there after a loss":   {[]answer{lost(errNetwork), refuses(409, "TableAlreadyExists"), created}, 3, nil},
		"still being deleted":  {[]answer{refuses(409, "TableBeingDeleted"), refuses(409, "TableBeingDeleted"), created}, 4, nil},
		"being deleted":        {[]answer{refuses(409, "TableBeingDeleted")}, 4, tablestore.ErrUnavailable},
		"no right":             {[]answer{refuses(403, "AuthorizationFailure")}, 1, errDenied},
		"no account":           {[]answer{refuses(404, "ResourceNotFound")}, 1, tablestore.ErrUnavailable},
		"no connection":        {[]answer{unreachable(errNetwork)}, 4, tablestore.ErrUnavailable},
		"a name they dislike":  {[]answer{refuses(400, "")}, 1, tablestore.ErrInvalid},
		"the second one fails": {[]answer{created, refuses(403, "AuthorizationFailure")}, 2, errDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				service := &script{answers: test.answers}
				options := aztablestore.Options{Connection: scriptedConnection, Transport: service, Tables: []string{"table", "other"}}
				store, err := aztablestore.Open(t.Context(), options)
				expectError(t, err, test.want)
				if (err == nil) != (test.want == nil) || (store == nil) != (err != nil) || service.requests() != test.requests {
					t.Errorf("%v after %d requests, want %d", err, service.requests(), test.requests)
				}
				if err != nil && !strings.Contains(err.Error(), "create table ") {
					t.Errorf("error %q does not name the table", err)
				}
			})
		})
	}
}

// A store that is only read creates no tables, and a missing one is empty.
func TestOpenToRead(t *testing.T) {
	t.Parallel()
	options := once
	options.Tables, options.ReadOnly = []string{table}, true
	store, service := scripted(t, options, refuses(404, "TableNotFound"))
	_, err := store.Get(t.Context(), key("a"))
	expectError(t, err, tablestore.ErrNotFound)
	page, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "p"})
	if err != nil || len(page.Rows) > 0 || page.Next != "" {
		t.Errorf("scan: %+v, %v", page, err)
	}
	rows, err := store.Walk(t.Context(), tablestore.Walk{Table: table})
	if err != nil || len(rows) > 0 || service.requests() != 3 {
		t.Errorf("walk: %d rows, %v, after %d requests in all", len(rows), err, service.requests())
	}
}

// Create names the tables that it has created itself.
func TestCreateSaysWhatItDid(t *testing.T) {
	t.Parallel()
	created := reply(201, `{"TableName":"table"}`, "Content-Type", "application/json")
	service := &script{answers: []answer{refuses(409, "TableAlreadyExists"), created, refuses(403, "AuthorizationFailure")}}
	options := aztablestore.Options{Connection: scriptedConnection, Transport: service, Tables: []string{"there", "missing", "refused"}}
	names, err := aztablestore.Create(t.Context(), options)
	if diff := cmp.Diff([]string{"missing"}, names); diff != "" || err == nil || !strings.Contains(err.Error(), "create table refused") {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
	options.Tables = []string{"Upper"}
	if _, err := aztablestore.Create(t.Context(), options); err == nil || !strings.Contains(err.Error(), "Options.Tables[0]") {
		t.Errorf("an invalid name: %v", err)
	}
}

// The short connection string of an emulator stands for its usual address.
func TestOpenKnowsTheDevelopmentStorage(t *testing.T) {
	t.Parallel()
	for _, connection := range []string{"UseDevelopmentStorage=true", " usedevelopmentstorage = True; "} {
		address := ""
		service := &script{choose: func(req *request) answer {
			address = req.URL.String()
			return refuses(409, "TableAlreadyExists")
		}}
		_, err := aztablestore.Open(t.Context(), aztablestore.Options{Connection: connection, Transport: service, Tables: []string{"table"}})
		if err != nil || !strings.HasPrefix(address, "http://127.0.0.1:10002/devstoreaccount1/Tables") {
			t.Errorf("%q: %v, asked at %q", connection, err, address)
		}
	}
}

func TestOpenUnderAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	service := &script{}
	_, err := aztablestore.Open(ctx, aztablestore.Options{Connection: scriptedConnection, Transport: service, Tables: []string{"table"}})
	if expectError(t, err, tablestore.ErrUnavailable); !errors.Is(err, context.Canceled) || service.requests() > 0 {
		t.Errorf("open: %v after %d requests", err, service.requests())
	}
}

// credential gives out one token, or an error.
type credential struct {
	err   error
	asked atomic.Int64
}

func (c *credential) GetToken(_ context.Context, options policy.TokenRequestOptions) (azcore.AccessToken, error) {
	c.asked.Add(1)
	if len(options.Scopes) != 1 || options.Scopes[0] != "https://storage.azure.com/.default" {
		return azcore.AccessToken{}, errors.New("a token for something else")
	}
	return azcore.AccessToken{Token: "token", ExpiresOn: time.Now().Add(time.Hour)}, c.err
}

func TestEndpointTakesATokenOverTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", batchType)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(multipart(done(one))))
	}))
	defer server.Close()
	store := open(t, aztablestore.WithCredential(
		aztablestore.Options{Endpoint: server.URL, Transport: server.Client().Transport}, &credential{}))
	if _, err := store.Commit(t.Context(), tablestore.Batch{insert("a")}); err != nil {
		t.Errorf("commit: %v", err)
	}
}

// TestNoToken is about a write that was certainly never sent, and is retried.
func TestNoToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, denied := &script{}, &credential{err: errors.New("no identity")}
		store := open(t, aztablestore.WithCredential(
			aztablestore.WithTries(aztablestore.Options{Endpoint: "https://nowhere.invalid", Transport: service}, 3), denied))
		_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
		expectError(t, err, tablestore.ErrUnavailable)
		if service.requests() != 0 || denied.asked.Load() != 3 {
			t.Errorf("%v after %d requests and %d questions for a token", err, service.requests(), denied.asked.Load())
		}
	})
}

func TestEndpointHasADefaultCredential(t *testing.T) {
	t.Parallel()
	open(t, aztablestore.Options{Endpoint: "https://nowhere.invalid"})
}

func TestCheck_NamesTheForbiddenOperation(t *testing.T) {
	t.Parallel()
	forbidden := refuses(403, "AuthorizationPermissionMismatch")
	for name, answers := range map[string][]answer{
		"write a row": {forbidden},
		"read it":     {inside(done(one)), forbidden},
	} {
		options := once
		options.Connection, options.Transport = scriptedConnection, &script{answers: answers}
		options.Tables = []string{table}
		checks, err := aztablestore.Check(t.Context(), options)
		if err != nil || len(checks) != 1 || checks[0].Err == nil || !strings.HasPrefix(checks[0].Err.Error(), name) {
			t.Errorf("%s: %+v, %v", name, checks, err)
		}
	}
}

// Another process that checks the table at the same time deletes the row.
func TestCheck_WithAnother(t *testing.T) {
	t.Parallel()
	missing := inside(failed(404, "ResourceNotFound", "0:No row."))
	options := once
	options.Connection, options.Tables = scriptedConnection, []string{table}
	options.Transport = &script{answers: []answer{inside(done(one)), refuses(404, "ResourceNotFound"), missing}}
	checks, err := aztablestore.Check(t.Context(), options)
	if diff := cmp.Diff([]aztablestore.TableCheck{{Name: table}}, checks); err != nil || diff != "" {
		t.Errorf("check: %v (-want +got)\n%s", err, diff)
	}
}

func TestCheck_OfAMissingAccount(t *testing.T) {
	t.Parallel()
	options := aztablestore.WithLimits(aztablestore.Options{
		Connection: "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=aGk=;TableEndpoint=http://127.0.0.1:1/a;",
		Tables:     []string{table},
	}, time.Second, aztablestore.CallTimeout, 1)
	if checks, err := aztablestore.Check(t.Context(), options); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%+v, %v", checks, err)
	}
	if _, err := aztablestore.Check(t.Context(), aztablestore.Options{}); err == nil {
		t.Error("no account was checked")
	}
}
