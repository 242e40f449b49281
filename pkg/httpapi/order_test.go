package httpapi_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// A job shows its key, mode and line, and has none of the members without a key.
func TestJobOf_ShowsItsOrder(t *testing.T) {
	t.Parallel()
	ordered := statemachine.Job{
		Order: statemachine.Order{Key: "customer:42", Mode: statemachine.OrderFIFO, Blocks: true},
		Place: statemachine.Place{Line: "ab12", Epoch: "e", Seq: 7},
	}
	for _, test := range []struct {
		job  statemachine.Job
		want map[string]any
	}{
		{statemachine.Job{}, map[string]any{}},
		{ordered, map[string]any{"order_key": "customer:42", "order_mode": "fifo", "line_id": "ab12"}},
	} {
		text, err := json.Marshal(httpapi.JobOf(&search.Shown{Aggregate: &statemachine.Aggregate{Job: test.job}}))
		musttest.NoError(t, err)
		var all map[string]any
		musttest.NoError(t, json.Unmarshal(text, &all))
		got := map[string]any{}
		for _, name := range []string{"order_key", "order_mode", "line_id"} {
			if value, ok := all[name]; ok {
				got[name] = value
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	}
}
