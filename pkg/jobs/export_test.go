package jobs

// SetMaxLive sets how many live jobs are sorted for one page.
func (s *Service) SetMaxLive(n int) { s.maxLive = n }

// SetMaxSearched sets how many index rows are looked at for one page.
func (s *Service) SetMaxSearched(n int) { s.maxSearched = n }
