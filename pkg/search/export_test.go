package search

import "time"

// DayOf returns the percentiles of these durations, which ended one after the other within the day until
// that time.
func DayOf(at time.Time, all []time.Duration) (percentiles Percentiles, kept int) {
	var of timings
	for i, took := range all {
		of.record(at.Add(day*time.Duration(i-len(all)+1)/time.Duration(len(all))), took)
	}
	for _, s := range of.day {
		kept += len(s.kept)
	}
	return of.day.percentiles(at), kept
}

// SetMaxLive sets the most live jobs whose ids are read for one page.
func (s *Service) SetMaxLive(n int) { s.maxLive = n }

// SetMaxSearched sets the most index rows that are searched for one page.
func (s *Service) SetMaxSearched(n int) { s.maxSearched = n }
