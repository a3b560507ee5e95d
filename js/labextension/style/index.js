import "../lib/panel.css";
import "./sidebar.css";
