package marks_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/marks"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

const table = "luciusschedule"

// listed returns the marks as tenant, finding and state, in order.
func listed(t *testing.T, s *marks.Service) []string {
	t.Helper()
	var texts []string
	for _, m := range musttest.Make(t, s.List, t.Context()) {
		texts = append(texts, strings.TrimSpace(m.TenantID+" "+m.FindingID+" "+string(m.State)+" "+m.Note))
	}
	slices.Sort(texts)
	return texts
}

func TestAMark_ReplacesThatOfItsFindingAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := marks.New(memstore.New(memstore.Options{}), table)
		set := func(tenant, finding string, state marks.State, note string, lasts time.Duration) marks.Mark {
			mark, err := s.Set(t.Context(), marks.Mark{TenantID: tenant, FindingID: finding, State: state, Note: note, Actor: "ops-1"}, lasts)
			musttest.NoError(t, err)
			return mark
		}
		want := func(texts ...string) {
			t.Helper()
			if got := listed(t, s); !slices.Equal(got, texts) {
				t.Errorf("the marks are %q, want %q", got, texts)
			}
		}
		if m := set("", "stuck", marks.Acknowledged, "", 0); m.Until.Sub(m.At) != marks.DefaultLast {
			t.Errorf("an acknowledgement lasts for %v", m.Until.Sub(m.At))
		}
		if m := set("acme", "stuck", marks.Snoozed, "", 0); m.Until.Sub(m.At) != marks.DefaultSnooze {
			t.Errorf("it is snoozed for %v", m.Until.Sub(m.At))
		}
		want("acme stuck snoozed", "stuck acknowledged")
		set("", "stuck", marks.Open, "the vendor knows", time.Minute)
		want("acme stuck snoozed", "stuck open the vendor knows")
		time.Sleep(time.Minute)
		want("acme stuck snoozed")
		set("acme", "stuck", marks.Open, "", 0)
		want()
	})
}

func TestMarks_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		s := marks.New(store, table)
		const ended = 150
		for i := range ended + marks.Most + 1 {
			lasts := time.Hour + time.Duration(i)
			if i < ended {
				lasts = time.Second
			}
			_, err := s.Set(t.Context(), marks.Mark{FindingID: strconv.Itoa(i), State: marks.Acknowledged}, lasts)
			musttest.NoError(t, err)
			if i == ended-1 {
				time.Sleep(time.Second)
			}
		}
		rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: table, Partition: "marks"})
		if musttest.NoError(t, err); len(rows) != marks.Most {
			t.Errorf("%d rows are kept, want %d", len(rows), marks.Most)
		}
	})
}

// One tenant's marks cannot displace those of others, and the newest mark of a tenant always stays.
func TestMarks_OfTheTenantWithTheMostAreDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := marks.New(memstore.New(memstore.Options{}), table)
		set := func(tenant, finding string, lasts time.Duration) {
			_, err := s.Set(t.Context(), marks.Mark{TenantID: tenant, FindingID: finding, State: marks.Snoozed}, lasts)
			musttest.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		set("", "stuck", time.Hour)
		set("quiet", "stuck", time.Hour)
		for i := range marks.Most {
			set("loud", strconv.Itoa(i), 24*time.Hour)
		}
		set("loud", "last", time.Minute)
		got := listed(t, s)
		for text, want := range map[string]bool{
			"stuck snoozed": true, "quiet stuck snoozed": true, "loud last snoozed": true, "loud 3 snoozed": true,
			"loud 0 snoozed": false, "loud 1 snoozed": false, "loud 2 snoozed": false,
		} {
			if slices.Contains(got, text) != want {
				t.Errorf("%q is kept: %v", text, !want)
			}
		}
		if len(got) != marks.Most {
			t.Errorf("%d are kept", len(got))
		}
	})
}

// Another process may replace a mark after this one has read that it is expired.
func TestAMark_SetAgainWhileItEnds_Stays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		other, again := marks.New(store, table), false
		s := marks.New(storetest.Hooked(store, func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
			if again && r.Call == storetest.CommitCall && r.Batches[0][0].Verb != tablestore.Put {
				again = false
				_, err := other.Set(ctx, marks.Mark{FindingID: "stuck", State: marks.Acknowledged}, time.Hour)
				musttest.NoError(t, err)
			}
			return do(ctx)
		}), table)
		_, err := s.Set(t.Context(), marks.Mark{FindingID: "stuck", State: marks.Snoozed}, time.Second)
		musttest.NoError(t, err)
		time.Sleep(time.Second)
		again = true
		_, err = s.Set(t.Context(), marks.Mark{FindingID: "slow", State: marks.Snoozed}, time.Hour)
		musttest.NoError(t, err)
		if got := listed(t, s); !slices.Equal(got, []string{"slow snoozed", "stuck acknowledged"}) {
			t.Errorf("the marks are %q", got)
		}
	})
}

func TestMarks_ReturnTheErrorOfTheStore(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, breaks := range map[string]func(calls int, r *storetest.Request) bool{
		"read the marks: broken": func(_ int, r *storetest.Request) bool { return r.Call == storetest.ScanCall },
		"store a mark: broken":   func(calls int, r *storetest.Request) bool { return r.Call == storetest.CommitCall && calls == 1 },
		"delete marks: broken": func(_ int, r *storetest.Request) bool {
			return r.Call == storetest.CommitCall && r.Batches[0][0].Verb == tablestore.Delete
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			s := marks.New(storetest.Hooked(memstore.New(memstore.Options{}),
				func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
					if calls++; breaks(calls, r) {
						return broken
					}
					return do(ctx)
				}), table)
			_, err := s.Set(t.Context(), marks.Mark{FindingID: "stuck", State: marks.Acknowledged}, time.Nanosecond)
			if err == nil || err.Error() != name || !errors.Is(err, broken) {
				t.Errorf("it returned %v", err)
			}
			if _, err = s.List(t.Context()); (err != nil) != strings.HasPrefix(name, "read") {
				t.Errorf("the list returned %v", err)
			}
		})
	}
}
