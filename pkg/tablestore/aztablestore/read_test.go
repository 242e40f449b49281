package aztablestore_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// page answers a query with those rows. A mark means that there are more.
func page(mark string, rows ...string) answer {
	var entities []string
	for _, row := range rows {
		entities = append(entities, fmt.Sprintf(`{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":%q}`, row))
	}
	headers := []string{"Content-Type", "application/json"}
	if mark != "" {
		headers = append(headers, "x-ms-continuation-NextPartitionKey", "P"+mark, "x-ms-continuation-NextRowKey", "R"+mark)
	}
	return reply(200, `{"value":[`+strings.Join(entities, ",")+`]}`, headers...)
}

// asked returns the parameters of each query.
func asked(t *testing.T, service *script) []url.Values {
	t.Helper()
	var all []url.Values
	for _, seen := range service.seen {
		address, err := url.Parse(seen)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, address.Query())
	}
	return all
}

// TestScanGoesOnPastEmptyPages is about pages without rows that are not the
// last, which Azure sends and Azurite never does.
func TestScanGoesOnPastEmptyPages(t *testing.T) {
	t.Parallel()
	store, service := scripted(t, once, page("1"), page("2"), page("3", "c", "d"), page(""))
	query := tablestore.Query{Table: table, Partition: "p", Limit: 2}
	first, err := store.Scan(t.Context(), query)
	if err != nil || len(first.Rows) != 2 || first.Next != "d\x00" {
		t.Fatalf("first page: %+v, %v", first, err)
	}
	query.Continue = first.Next
	last, err := store.Scan(t.Context(), query)
	if err != nil || len(last.Rows) != 0 || last.Next != "" {
		t.Errorf("last page: %+v, %v", last, err)
	}
	var marks, filters []string
	for _, query := range asked(t, service) {
		marks = append(marks, query.Get("NextPartitionKey")+query.Get("NextRowKey"))
		filters = append(filters, query.Get("$filter"))
	}
	if diff := cmp.Diff([]string{"", "P1R1", "P2R2", ""}, marks); diff != "" {
		t.Errorf("continuation marks (-want +got):\n%s", diff)
	}
	all, rest := "PartitionKey eq 'p'", "PartitionKey eq 'p' and RowKey ge 'd-'"
	if diff := cmp.Diff([]string{all, all, all, rest}, filters); diff != "" {
		t.Errorf("filters (-want +got):\n%s", diff)
	}
}

func TestScanThatFindsOnlyEmptyPagesEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := chosen(t, once, func(req *request) answer {
			select {
			case <-time.After(5 * time.Second):
				return page("1")
			case <-req.Context().Done():
				return lost(req.Context().Err())
			}
		})
		start := time.Now()
		_, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "p"})
		expectError(t, err, tablestore.ErrUnavailable)
		if time.Since(start) != aztablestore.CallTimeout {
			t.Errorf("it took %s", time.Since(start))
		}
	})
}

func TestScanAsksFor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		query  tablestore.Query
		filter string // Empty if no request is needed.
		top    string
	}{
		"a partition":          {tablestore.Query{}, "PartitionKey eq 'p'", "1000"},
		"a range":              {tablestore.Query{From: "STEP:", To: tablestore.PrefixEnd("STEP:")}, "PartitionKey eq 'p' and RowKey ge 'STEP:' and RowKey lt 'STEP='", "1000"},
		"a page":               {tablestore.Query{Limit: 7}, "PartitionKey eq 'p'", "7"},
		"a page over theirs":   {tablestore.Query{Limit: 5000}, "PartitionKey eq 'p'", "1000"},
		"the rest":             {tablestore.Query{From: "a", To: "z", Continue: "b\x00"}, "PartitionKey eq 'p' and RowKey ge 'b-' and RowKey lt 'z'", "1000"},
		"bounds with a quote":  {tablestore.Query{From: "a'b", To: "c'd"}, "PartitionKey eq 'p' and RowKey ge 'a-' and RowKey lt 'c-'", "1000"},
		"no upper bound":       {tablestore.Query{To: "\xff"}, "PartitionKey eq 'p'", "1000"},
		"after all":            {tablestore.Query{From: "\xff"}, "", ""},
		"before all":           {tablestore.Query{To: "\x00"}, "PartitionKey eq 'p' and RowKey lt '-'", "1000"},
		"a range without keys": {tablestore.Query{From: "b ", To: "b!"}, "", ""},
		"a range upside down":  {tablestore.Query{From: "c", To: "b"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, page(""))
			test.query.Table, test.query.Partition = table, "p"
			if found, err := store.Scan(t.Context(), test.query); err != nil || len(found.Rows) > 0 || found.Next != "" {
				t.Fatalf("scan: %+v, %v", found, err)
			}
			var filter, top string
			for _, query := range asked(t, service) {
				filter, top = query.Get("$filter"), query.Get("$top")
			}
			if filter != test.filter || top != test.top {
				t.Errorf("filter %q, top %s; want %q, %s", filter, top, test.filter, test.top)
			}
		})
	}
}

func TestScanFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer answer
		want   error
	}{
		"no such table": {refuses(404, "TableNotFound"), tablestore.ErrUnavailable},
		"no page":       {refuses(404, "ResourceNotFound"), tablestore.ErrUnavailable},
		"bad filter":    {refuses(400, "InvalidInput"), tablestore.ErrInvalid},
		"no right":      {refuses(403, "AuthenticationFailed"), errDenied},
		"lost":          {lost(errNetwork), tablestore.ErrUnavailable},
		"cut off":       {reply(200, `{"value":[{"Partit`, "Content-Type", "application/json"), tablestore.ErrUnavailable},
		"no row":        {reply(200, `{"value":[{"PartitionKey":"p"}]}`, "Content-Type", "application/json"), tablestore.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, _ := scripted(t, once, test.answer)
			_, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "p"})
			expectError(t, err, test.want)
		})
	}
}

// TestLowestKeepsTheOrder compares any bound with any key, directly and after
// converting the bound.
func TestLowestKeepsTheOrder(t *testing.T) {
	t.Parallel()
	legal := []byte("-.0123456789:=ABYZ_abyz")
	rapid.Check(t, func(t *rapid.T) {
		key := string(rapid.SliceOfN(rapid.SampledFrom(legal), 1, 6).Draw(t, "key"))
		bound := string(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(legal), rapid.Byte()), 0, 6).Draw(t, "bound"))
		if rapid.Bool().Draw(t, "near") {
			bound = key[:rapid.IntRange(0, len(key)).Draw(t, "prefix")] + bound
		}
		lowest, ok := aztablestore.Lowest(bound)
		if got := ok && key >= lowest; got != (key >= bound) {
			t.Errorf("key %q is after %q: %t, after its %q: %t", key, bound, key >= bound, lowest, got)
		}
		if slices.ContainsFunc([]byte(lowest), func(c byte) bool { return !strings.ContainsRune(aztablestore.Alphabet, rune(c)) }) {
			t.Errorf("%q becomes %q, which is not a key", bound, lowest)
		}
	})
}

// TestAlphabetIsThePorts checks the alphabet against the port's legal
// characters.
func TestAlphabetIsThePorts(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		legal := key(string([]byte{byte(c)})).Validate() == nil
		if legal != strings.Contains(aztablestore.Alphabet, string([]byte{byte(c)})) {
			t.Errorf("byte %#02x is legal in a key: %t", c, legal)
		}
	}
	if !slices.IsSorted([]byte(aztablestore.Alphabet)) {
		t.Errorf("%q is not in order", aztablestore.Alphabet)
	}
}

// TestReadsSendNoBody checks that proxies can treat reads as idempotent.
func TestReadsSendNoBody(t *testing.T) {
	t.Parallel()
	var methods []string
	store := chosen(t, once, func(req *request) answer {
		methods = append(methods, req.Method)
		return page("")
	})
	if _, err := store.Scan(t.Context(), tablestore.Query{Table: table, Partition: "p"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{http.MethodGet}, methods); diff != "" {
		t.Errorf("methods (-want +got):\n%s", diff)
	}
}
