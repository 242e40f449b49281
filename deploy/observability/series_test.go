package observability

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// scrape is what one scrape has read, by series as PromQL writes them.
type scrape struct {
	at     time.Time
	values map[string]value
}

type value struct {
	metric model.Metric
	is     float64
}

// interval is the time between two scrapes of a history, and two evaluations.
const interval = 30 * time.Second

// history are scrapes at regular intervals.
type history []scrape

// end is the time of the last scrape.
func (h history) end() time.Time { return h[len(h)-1].at }

// query evaluates the expression at each scrape.
func (h history) query(t *testing.T, expression string) promql.Matrix {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: 10 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	defer func() { _ = engine.Close() }()
	query, err := engine.NewRangeQuery(t.Context(), h, nil, expression, h[0].at, h.end(), interval)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	defer query.Close()
	result, err := query.Exec(t.Context()).Matrix()
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return slices.Clone(result)
}

// Querier implements [storage.Queryable].
func (h history) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: h.selectSeries}, nil
}

func (h history) selectSeries(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := map[string]*promql.Series{}
	for _, scrape := range h {
		for name, of := range scrape.values {
			series, known := found[name]
			if !known {
				series = of.series(matchers)
				found[name] = series
			}
			if series != nil {
				series.Floats = append(series.Floats, promql.FPoint{T: scrape.at.UnixMilli(), F: of.is})
			}
		}
	}
	set := &seriesSet{at: -1}
	for _, series := range found {
		if series != nil {
			set.series = append(set.series, *series)
		}
	}
	slices.SortFunc(set.series, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return set
}

// series returns an empty series of the value, or nil if the matchers do not match it.
func (v value) series(matchers []*labels.Matcher) *promql.Series {
	with := map[string]string{"instance": "lucius:8080", "job": "lucius"}
	for label, value := range v.metric {
		with[string(label)] = string(value)
	}
	if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(with[m.Name]) }) {
		return nil
	}
	return &promql.Series{Metric: labels.FromMap(with)}
}

// seriesSet implements [storage.SeriesSet].
type seriesSet struct {
	series []promql.Series
	at     int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.series[s.at]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
