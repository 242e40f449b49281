package jobs

// SetMaxLive sets how many live jobs are sorted for one page.
func (s *Service) SetMaxLive(n int) { s.maxLive = n }
