"""What a person sees: tables, pages, pictures and exports of saved runs."""
