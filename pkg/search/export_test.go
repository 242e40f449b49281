package search

// SetMaxLive sets the most live jobs whose ids are read for one page.
func (s *Service) SetMaxLive(n int) { s.maxLive = n }

// SetMaxSearched sets the most index rows that are searched for one page.
func (s *Service) SetMaxSearched(n int) { s.maxSearched = n }
