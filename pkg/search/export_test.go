package search

import "time"

// DayOf returns the percentiles of a day with these durations.
func DayOf(at time.Time, all ...time.Duration) Percentiles {
	var of spread
	for _, took := range all {
		of.record(at, took)
	}
	return of.percentiles(at)
}

// SetMaxLive sets the most live jobs whose ids are read for one page.
func (s *Service) SetMaxLive(n int) { s.maxLive = n }

// SetMaxSearched sets the most index rows that are searched for one page.
func (s *Service) SetMaxSearched(n int) { s.maxSearched = n }

// SetMaxTenants sets how many tenants' jobs a list merges.
func (s *Service) SetMaxTenants(n int) { s.maxTenants = n }
