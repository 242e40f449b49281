package console

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// failuresPage shows what failed and why, in groups.
type failuresPage struct {
	filterOffers

	Tenant tenantFilter
	// Filter selects the jobs, and Since is the time span of their failures, one of
	// failureSpans.
	Filter selection
	Since  string
	Spans  []string
	// IncludeResolved says that Resolved has the groups of rerun jobs.
	IncludeResolved bool
	Open, Resolved  []failureGroup
	Retrying        []failureGroup // of live jobs
	Jobs            int            // in the groups of Open
	Truncated       bool
	Command         string
}

// failureGroup is a group with links to its jobs.
type failureGroup struct {
	api.FailureGroup

	Jobs, Retry string
	// Spark is the histogram as a chart. It begins at From and ends at To, which is zero for
	// the present.
	Spark    sparkline
	From, To api.Time
}

// sparkline is a histogram as bars in a box of sparkWidth by sparkHeight.
type sparkline struct {
	Bars  []sparkBar
	Label string
}

type sparkBar struct{ X, Y, Width, Height int }

const (
	sparkWidth  = 150
	sparkHeight = 36
)

// sparklineOf draws counts, the largest at full height. Even the bar of the smallest stays
// visible.
func sparklineOf(counts []int) (s sparkline) {
	most, last := 0, 0
	for _, n := range counts {
		most, last = max(most, n), n
	}
	for i, n := range counts {
		if n == 0 {
			continue
		}
		left, right := i*sparkWidth/len(counts), (i+1)*sparkWidth/len(counts)
		height := max(n*sparkHeight/most, 2)
		s.Bars = append(s.Bars, sparkBar{X: left, Y: sparkHeight - height, Width: max(right-left-1, 1), Height: height})
	}
	s.Label = fmt.Sprintf("At most %d in one of %d equal parts of the time; %d in the last part.", most, len(counts), last)
	return s
}

// failureSpans are the time spans that the page offers.
var failureSpans = []string{"1 h", "24 h", "7 d", "30 d", "any time"}

var failureSpanLengths = map[string]time.Duration{
	"1 h": time.Hour, "24 h": 24 * time.Hour, "7 d": 7 * 24 * time.Hour, "30 d": 30 * 24 * time.Hour,
}

func failures(r *request) (view, error) {
	data := failuresPage{
		Tenant: r.tenant(api.GrantRoleRead), Since: cmp.Or(r.FormValue("since"), "any time"), Spans: failureSpans,
		IncludeResolved: r.FormValue("include") == "resolved",
	}
	var err error
	if data.Filter, err = selectionOf(r); err != nil {
		return view{}, err
	}
	data.Filter.TenantID, data.Filter.State = data.Tenant.Value, ""
	if span := failureSpanLengths[data.Since]; span > 0 {
		data.Filter.EndedAfter = api.NewTime(r.now.Add(-span).Truncate(time.Second))
	}
	f := &data.Filter
	params := &api.ListFailuresParams{
		TenantID: optional(f.TenantID), DocID: optional(f.DocID), Tag: f.tagParams(),
		RequestType: optional(f.RequestType), Service: optional(f.Service),
		StepType: optional(f.StepType), ErrorCode: optional(f.ErrorCode),
		CreatedAfter: optional(f.CreatedAfter), CreatedBefore: optional(f.CreatedBefore),
		EndedAfter: optional(f.EndedAfter), EndedBefore: optional(f.EndedBefore),
	}
	params.Include = &[]api.ListFailuresParamsInclude{api.ListFailuresParamsIncludeRetrying}
	if data.IncludeResolved {
		*params.Include = append(*params.Include, api.ListFailuresParamsIncludeResolved)
	}
	list, err := call[api.FailureList](r.api.ListFailures(r.Context(), params))
	if err != nil {
		return view{}, err
	}
	data.Truncated, data.Command = list.Truncated, diagnosis.Command("failures", f.flags()...)
	data.filterOffers = filterOffersOf(r.known())
	data.Command += " --include-retrying"
	if data.IncludeResolved {
		data.Command += " --include-resolved"
	}
	for i := range list.Groups {
		group := failureGroupOf(f, &list.Groups[i])
		group.SampleMessage = diagnosis.Brief(group.SampleMessage, diagnosis.BriefMessage)
		group.Spark, group.From, group.To = sparklineOf(group.Histogram), list.From, f.EndedBefore
		if group.Resolved {
			data.Resolved = append(data.Resolved, group)
			continue
		}
		if group.Retrying {
			data.Retrying = append(data.Retrying, group)
			continue
		}
		data.Jobs += group.Count
		data.Open = append(data.Open, group)
	}
	return view{Title: "Failures", Template: "failures", Data: data}, nil
}

// failureGroupOf adds the links of a group of the filter's jobs.
func failureGroupOf(f *selection, group *api.FailureGroup) failureGroup {
	filter := append(f.tagQuery(),
		"tenant_id", f.TenantID, "doc_id", f.DocID, "request_type", f.RequestType, "service", group.Service, "step_type", group.StepType,
		"error_code", group.ErrorCode, "created_after", stamp(f.CreatedAfter), "created_before", stamp(f.CreatedBefore),
	)
	if group.Retrying {
		return failureGroup{FailureGroup: *group, Jobs: link("jobs", append(filter, "waiting", waitsAtAll)...)}
	}
	filter = append(filter, "ended_after", stamp(f.EndedAfter), "ended_before", stamp(f.EndedBefore))
	return failureGroup{
		FailureGroup: *group, Retry: link("do/retry", filter...), Jobs: link("jobs", append(filter, "state", api.JobStateFailedFinal)...),
	}
}

// stamp returns a time as a parameter, empty for the zero time.
func stamp(at api.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.String()
}
